"""Chunk properties that need no decoding: kind, compressed bytes, codec."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import (
    ChunkHeader,
    Special,
    longest_chunk,
    parse_chunk_header,
)
from b2nd_dask.format.index import ChunkKind, stored_chunks
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.scan import chunk_heads
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import CHUNK_MEMBER, chunk_member

#: The kind of a stored chunk that repeats one value; `ChunkKind` has the others.
ONE_VALUE = int(Special.REPEATED)
#: Most headers that `Frame.info` and the drawing of a frame read, at 20 microseconds each. In a
#: sparse frame each is in its own file, which takes longer.
MOST_HEADERS, MOST_FILES = 10_000, 2_000

_BUILTIN = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
_AS_IS, _NO_CODEC, _UNREADABLE = "stored as is", "one value", "unreadable"


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of a frame; the columns have one row per stored chunk."""

    kinds: NDArray[np.uint8]
    """`ChunkKind` or `ONE_VALUE` of each chunk, in the shape of the chunk grid."""
    stored: NDArray[np.int64]
    """Numbers of the stored chunks, ascending."""
    nbytes: NDArray[np.int64]
    """Bytes of each stored chunk. Without headers, an upper bound: the distance to the next chunk.
    Empty if even that is unknown."""
    codecs: NDArray[np.uint8] | None
    """For each stored chunk, its position in `codec_names`; None if headers were not read."""
    codec_names: tuple[str, ...]
    chunk_nbytes: int
    """Uncompressed bytes of a chunk, padding included."""

    @property
    def is_exact(self) -> bool:
        """Whether the chunk headers were read."""
        return self.codecs is not None

    @cached_property
    def data(self) -> NDArray[np.bool_]:
        """Whether each stored chunk holds more than one value; without headers, True."""
        return np.equal(self.kinds.reshape(-1)[self.stored], np.uint8(ChunkKind.STORED))

    @cached_property
    def counts(self) -> dict[int, int]:
        """Number of chunks of each kind that occurs."""
        kinds = self.kinds
        if kinds.size and not any(kinds.strides):
            return {int(kinds.flat[0]): kinds.size}
        found = np.bincount(kinds.reshape(-1), minlength=5)
        return {kind: int(count) for kind, count in enumerate(found) if count}


def chunk_table(reference: FrameReference, most: int | None = None) -> ChunkTable:
    """Describe the chunks of a frame.

    Chunk headers are read if at most `most` chunks are stored, by default any number. Those of a
    frame in a store are never read, since each may be a request. Raises `StaleFrameError` if the
    frame was changed during the call.
    """
    parsed = reference.parsed
    kinds, index = reference.chunk_kinds(), parsed.index
    stored = stored_chunks(index.offsets)
    grid, sparse = parsed.grid, parsed.header.sparse
    longest = longest_chunk(grid.chunk_nbytes, grid.block_nbytes) if grid.nchunks else 0
    nbytes = np.empty(0, np.int64)
    if len(stored) and not sparse:
        starts, stops = index.extents(stored)
        nbytes = np.minimum(stops - starts, longest)
    is_too_much = reference.is_remote or (most is not None and len(stored) > most)
    if not len(stored) or is_too_much:
        none = None if len(stored) else np.empty(0, np.uint8)
        return ChunkTable(kinds, stored, nbytes, none, (), grid.chunk_nbytes)
    available = np.full(len(stored), longest) if sparse else nbytes
    with reference.reading() as (opened, _):
        heads = chunk_heads(opened, stored, is_lenient=True)
        headers = [_parsed(*each) for each in zip(heads, available.tolist(), strict=True)]
    return _of_headers(kinds, stored, available, headers, grid.chunk_nbytes)


def most_headers(reference: FrameReference) -> int:
    """Most headers to read for a description that must appear immediately."""
    return MOST_FILES if reference.parsed.header.sparse else MOST_HEADERS


def superseded_in(reference: FrameReference, table: ChunkTable) -> int | None:
    """Compute the bytes that `compact` would free, up to a few bytes of metadata.

    None if unknown: headers of chunks were not read, or the frame is not in a local file or
    directory of its own.
    """
    location = reference.location
    if location.offset or location.member or not isinstance(location.urlpath, str):
        return None
    if location.is_url or not table.is_exact:
        return None
    try:
        return superseded_at(Path(location.urlpath), reference.parsed, int(table.nbytes.sum()))
    except OSError:
        return None


def superseded_at(path: Path, frame: ParsedFrame, used: int) -> int:
    """Compute the bytes in the files of a local frame beside its chunks, which have `used`."""
    header, offsets = frame.header, frame.index.offsets
    if not header.sparse:
        behind = path.stat().st_size - header.frame_len
        return max(header.cbytes - used + behind, 0)
    members = {chunk_member(number) for number in offsets[stored_chunks(offsets)].tolist()}
    with os.scandir(path) as entries:
        chunks = (entry for entry in entries if CHUNK_MEMBER.fullmatch(entry.name))
        unused = (entry for entry in chunks if entry.name not in members)
        return sum(entry.stat(follow_symlinks=False).st_size for entry in unused)


def _parsed(head: bytes, available: int) -> ChunkHeader | None:
    """Parse the header of a chunk; None if it is damaged or missing."""
    try:
        return parse_chunk_header(head, available)
    except B2ndError:
        return None


def _of_headers(
    kinds: NDArray[np.uint8],
    stored: NDArray[np.int64],
    available: NDArray[np.int64],
    headers: list[ChunkHeader | None],
    chunk_nbytes: int,
) -> ChunkTable:
    nbytes = np.array(
        [
            most if h is None else h.cbytes
            for h, most in zip(headers, available.tolist(), strict=True)
        ]
    )
    special = np.array([0 if h is None else h.special for h in headers], np.uint8)
    if special.any():
        flat = kinds.reshape(-1).copy()
        flat[stored] = special
        kinds = flat.reshape(kinds.shape)
    named = [_codec_of(header) for header in headers]
    names = tuple(sorted(set(named), key=lambda name: (name == _NO_CODEC, name)))
    number = {name: at for at, name in enumerate(names)}
    codecs = np.array([number[name] for name in named], np.uint8)
    return ChunkTable(kinds, stored, nbytes, codecs, names, chunk_nbytes)


def _codec_of(header: ChunkHeader | None) -> str:
    if header is None:
        return _UNREADABLE
    if header.special:
        return _NO_CODEC
    if header.memcpyed:
        return _AS_IS
    return f"plug-in {header.codec_id}" if header.codec_id >= 0 else _BUILTIN[header.flags >> 5]
