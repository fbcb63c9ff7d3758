"""The positions of fields in a sound frame, found without the tested package."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import blosc2
import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.files import Files

MAIN = "chunks.b2frame"

#: Offsets and widths of fields in the frame header and in a chunk header.
HEADER_FIELDS = (
    *((11, 4), (16, 8), (25, 1), (26, 1), (27, 1), (28, 1), (30, 8), (39, 8), (48, 4), (53, 4)),
    *((58, 4), (63, 2), (66, 2), (68, 1), (70, 1), (71, 1), (76, 1), (77, 1), (78, 1), (85, 1)),
)
CHUNK_FIELDS = (
    *((0, 1), (1, 1), (2, 1), (3, 1), (4, 4), (8, 4), (12, 4), (16, 1), (20, 1), (21, 1)),
    *((22, 1), (23, 1), (24, 1), (29, 1), (30, 1), (31, 1), (32, 4), (36, 4), (40, 4)),
)


class Field(NamedTuple):
    """A number in a file."""

    file: str
    start: int
    width: int


class Layout(NamedTuple):
    """The parts of the main file, and in all files the numbers that determine sizes and offsets."""

    main: str
    header_len: int
    index_start: int
    trailer_start: int
    frame_len: int
    chunks: tuple[tuple[str, int], ...]
    """File and position of each stored chunk, including the index."""
    fields: tuple[Field, ...]
    offsets: tuple[int, ...]
    """Entries of the index."""


def layout_of(files: Files) -> Layout:
    """Find the parts of a sound frame."""
    main = MAIN if MAIN in files else ""
    frame = files[main]
    header_len, frame_len = struct.unpack_from(">ixQ", frame, 11)
    (nbytes,), (cbytes,) = struct.unpack_from(">q", frame, 30), struct.unpack_from(">q", frame, 39)
    index_start = header_len + (0 if main else cbytes)
    (trailer_len,) = struct.unpack_from(">I", frame, frame_len - 22)
    trailer_start = frame_len - trailer_len
    chunks = [(name, 0) for name in files if name != main]
    offsets = np.empty(0, "<i8")
    if nbytes:
        chunks.append((main, index_start))
        offsets = np.frombuffer(blosc2.decompress2(frame[index_start:trailer_start]), "<i8")
        if not main:
            chunks += [(main, header_len + int(offset)) for offset in offsets[offsets >= 0]]
    fields = [Field(main, *place) for place in HEADER_FIELDS]
    fields += [
        Field(name, at + start, width) for name, at in chunks for start, width in CHUNK_FIELDS
    ]
    # the section of metalayers and the trailer are short: each byte may be a marker or a length
    fields += [Field(main, at, 1 << at % 4) for at in range(87, header_len)]
    fields += [Field(main, at, 1 << at % 4) for at in range(trailer_start, frame_len)]
    inside = [f for f in fields if f.start + f.width <= len(files[f.file])]
    return Layout(
        main=main,
        header_len=header_len,
        index_start=index_start,
        trailer_start=trailer_start,
        frame_len=frame_len,
        chunks=tuple(chunks),
        fields=tuple(inside),
        offsets=tuple(offsets.tolist()),
    )
