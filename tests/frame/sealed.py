"""Frames with checksums, and the places of their parts, found without this package's readers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import blosc2
import numpy as np

from b2nd_dask import to_b2nd
from b2nd_dask.format.integrity import ChunkColumns
from b2nd_dask.frame.open.cache import FrameCache
from b2nd_dask.storage import Location

CHUNKS, BLOCKS = (24, 17), (10, 5)
VALUES = np.random.default_rng(5).normal(size=(100, 60)).round(2)
# a chunk of zeros, one that repeats an element
VALUES[:24, :17] = 0
VALUES[24:48, 17:34] = 3


def write(path: Path, *, contiguous: bool, level: int = 5, values: Any = VALUES) -> None:
    to_b2nd(
        values,
        path,
        chunks=CHUNKS,
        blocks=BLOCKS,
        contiguous=contiguous,
        cparams={"clevel": level},
        meta={"m": 1},
        vlmeta={"v": 1},
    )


def columns(path: Path) -> ChunkColumns:
    """What the frame says now."""
    return FrameCache().open(Location.of(path)).parsed.columns


def main_file(path: Path) -> Path:
    return path / "chunks.b2frame" if path.is_dir() else path


def places(path: Path) -> tuple[int, int, int, int]:
    """Where the data, the index chunk, the trailer and the frame end, from the header alone."""
    raw = main_file(path).read_bytes()
    (header_len,) = struct.unpack_from(">i", raw, 11)
    (frame_len,) = struct.unpack_from(">Q", raw, 16)
    (cbytes,) = struct.unpack_from(">q", raw, 39)
    (trailer_len,) = struct.unpack_from(">I", raw, frame_len - 22)
    index = header_len if path.is_dir() else header_len + cbytes
    return header_len, index, frame_len - trailer_len, frame_len


def listed_vlmeta(path: Path) -> dict[str, Any]:
    """What python-blosc2 shows; its schunk must not outlive its array."""
    array = blosc2.open(str(path))
    return dict(array.schunk.vlmeta[:])


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def stored_chunks(path: Path) -> dict[int, tuple[Path, int, int]]:
    """File, start and stop of each stored chunk."""
    header_len, index_at, trailer_at, _ = places(path)
    index = main_file(path).read_bytes()[index_at:trailer_at]
    offsets = np.frombuffer(blosc2.decompress2(index), "<i8").tolist()
    found = {}
    for chunk, offset in enumerate(offsets):
        if offset >= 0 and path.is_dir():
            file = path / f"{offset:08X}.chunk"
            found[chunk] = file, 0, file.stat().st_size
        elif offset >= 0:
            start = header_len + offset
            (cbytes,) = struct.unpack_from("<i", path.read_bytes(), start + 12)
            found[chunk] = path, start, start + cbytes
    return found
