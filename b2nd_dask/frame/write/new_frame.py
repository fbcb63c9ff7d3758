"""Plan a new frame within the limits of the format, with defaults."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from b2nd_dask.errors import level_of_caller
from b2nd_dask.format.chunk.chunk_header import MAX_BLOCKSIZE
from b2nd_dask.format.chunk.compression import (
    DELTA_FILTER,
    Compression,
    compression_of,
    default_blocks,
)
from b2nd_dask.format.dtypes import not_stored
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import MAX_HEADER_LEN, FrameHeader, build_header
from b2nd_dask.format.metalayers import (
    MAX_CATERVA_NDIM,
    MAX_CHUNKS,
    MAX_METALAYERS,
    MAX_NDIM,
    RECORD_NAME,
    STATISTICS_NAME,
    build_array_meta,
    is_own_value,
    users_meta,
    users_vlmeta,
)
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.format.values import pack_metadata
from b2nd_dask.frame.write.records import row_dtype
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Location, Staging, staging_for

#: The format allows 2**31 - 33; this is the largest size that worked everywhere in python-blosc2.
LARGEST_WRITTEN_CHUNK = 2**31 - 2**20

#: Content of the frame's own entries of vlmeta, for messages.
_OWN_ENTRIES = {RECORD_NAME: "checksums", STATISTICS_NAME: "statistics"}


@dataclass(frozen=True, eq=False, slots=True)
class FramePlan:
    """The plan of a new frame: everything but its chunks. Its pickle is small."""

    grid: Grid
    dtype: np.dtype[Any]
    compression: Compression
    sparse: bool
    meta: Mapping[str, bytes]
    """The user's fixed metalayers, packed."""
    vlmeta: Mapping[str, bytes]
    """The user's variable-length metalayers, packed and compressed."""
    caterva: bool = False
    """Whether the header also has the metalayer of the older Caterva."""
    stats: bool = False
    """Whether the frame has statistics of its chunks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(FramePlan, *(getattr(self, field.name) for field in fields(self)))

    @classmethod
    def of_header(
        cls, header: FrameHeader, grid: Grid, dtype: np.dtype[Any], vlmeta: Any, *, stats: bool
    ) -> Self:
        """Plan a frame with the compression and the metalayers of a header."""
        layers, storage = header.metalayers, (header.compression, header.sparse)
        return cls(grid, dtype, *storage, users_meta(layers), vlmeta, "caterva" in layers, stats)

    @property
    def row(self) -> np.dtype[Any]:
        """Dtype of the rows of the chunk table."""
        return row_dtype(self.dtype if self.stats else None)

    @property
    def own_meta(self) -> dict[str, bytes]:
        """The metalayers that make the frame an array."""
        own = {"b2nd": build_array_meta(self.grid, self.dtype)}
        if self.caterva:
            own["caterva"] = build_array_meta(self.grid, None)
        return own

    def header(self) -> bytes:
        """Build the frame's header; `with_new_tail` adds the lengths of the other sections."""
        grid = self.grid
        header = FrameHeader(
            header_len=0,
            frame_len=0,
            sparse=self.sparse,
            nbytes=grid.nchunks * grid.chunk_nbytes,
            cbytes=0,
            typesize=grid.itemsize,
            blocksize=grid.block_nbytes,
            chunksize=grid.chunk_nbytes,
            compression=self.compression,
            metalayers={**self.own_meta, **self.meta},
        )
        return build_header(header, has_vlmeta=False)

    def staging(self, location: Location, **options: Any) -> Staging:
        """Create the staging to write the frame; options and errors as for `staging_for`."""
        header_len = len(self.header())
        return staging_for(location, sparse=self.sparse, header_len=header_len, **options)


def plan_frame(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    chunks: tuple[int, ...],
    blocks: tuple[int, ...] | None = None,
    cparams: Any,
    meta: Mapping[str, bytes] | None = None,
    vlmeta: Mapping[str, bytes] | None = None,
    sparse: bool = False,
    caterva: bool = False,
    stats: bool = False,
) -> FramePlan:
    """Plan a new frame: everything but its data.

    `blocks` default to `default_blocks`; for `cparams` see `compression_of`, for the flags
    `FramePlan`. `meta` and `vlmeta` are the user's entries as `pack_entries` returns them.

    Raises ValueError if chunks or blocks do not fit, or the metadata exceeds the room in the
    format; TypeError for an unknown compression parameter, or a dtype without statistics;
    `UnsupportedFrameError` for a codec or filter that needs the array's shape.
    """
    if not isinstance(stats, bool | np.bool_):
        raise TypeError(f"stats={stats!r}: give True or False")
    if stats:
        check_statistics(dtype, "; omit stats=True")
    plan = FramePlan(
        grid=_new_grid(shape, dtype, chunks, blocks),
        dtype=dtype,
        compression=compression_of(cparams, dtype.itemsize),
        sparse=sparse,
        meta=meta or {},
        vlmeta=vlmeta or {},
        caterva=caterva,
        stats=stats,
    )
    _check_metadata(plan)
    _warn_of_delta(plan)
    return plan


def pack_entries(entries: Mapping[str, Any] | None, *, compressed: bool) -> Mapping[str, bytes]:
    """Pack a user's metadata, without entries of the frame that python-blosc2 lists among them.

    With `compressed` they are vlmeta, else fixed metalayers. Raises ValueError if a name is too
    long, or belongs to the frame and the value does not; TypeError if msgpack cannot hold a value.
    """
    if compressed and isinstance(entries, Mapping):
        for name, what in _OWN_ENTRIES.items():
            if name in entries and not is_own_value(name, entries[name]):
                raise ValueError(
                    f"vlmeta={{{name!r}: ...}}: this name belongs to the frame's own {what}; "
                    "choose another name"
                )
        entries = users_vlmeta(entries)
    return pack_metadata(entries or {}, compressed=compressed)


def check_storable(dtype: np.dtype[Any]) -> None:
    """Raise TypeError with advice for a dtype that a frame cannot hold."""
    reason = not_stored(dtype)
    if reason:
        raise TypeError(f"elements of {dtype} are {reason}")


def check_statistics(dtype: np.dtype[Any], advice: str = "") -> None:
    """Raise TypeError for a dtype without statistics."""
    if not supports_statistics(dtype):
        raise TypeError(
            f"statistics support numbers of up to 64 bits (complex numbers of 128 bits), bool and "
            f"times, not elements of {dtype}{advice}"
        )


def halved(sizes: Sequence[int], itemsize: int, most: int) -> tuple[int, ...]:
    """Halve a shape along its longest axes until it has at most `most` bytes.

    Examples
    --------
    >>> halved((1000, 3000), 8, 1 << 22)
    (500, 750)
    """
    sizes = list(sizes)
    while math.prod(sizes) * itemsize > most and max(sizes) > 1:
        longest = sizes.index(max(sizes))
        sizes[longest] = -(-sizes[longest] // 2)
    return tuple(sizes)


def _new_grid(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunks: tuple[int, ...],
    blocks: tuple[int, ...] | None,
) -> Grid:
    """Check shapes of chunks and blocks, and choose default blocks."""
    if len(shape) > MAX_NDIM:
        raise ValueError(
            f"the array has {len(shape)} dimensions; a frame has at most {MAX_NDIM}: reshape it"
        )
    if blocks is None:
        blocks = default_blocks(chunks, dtype.itemsize)
    elif any(b > c for b, c in zip(blocks, chunks, strict=True)):
        raise ValueError(f"blocks {blocks} are larger than chunks {chunks}: choose smaller blocks=")
    grid = Grid(shape, chunks, blocks, dtype.itemsize)
    if grid.chunk_nbytes > LARGEST_WRITTEN_CHUNK:
        raise ValueError(
            f"chunks {chunks} of {dtype} have {grid.chunk_nbytes} bytes, the maximum is "
            f"{LARGEST_WRITTEN_CHUNK}: choose smaller chunks="
        )
    if grid.nchunks > MAX_CHUNKS:
        raise ValueError(
            f"the shape {shape} in chunks {chunks} has {grid.nchunks} chunks, the maximum is "
            f"{MAX_CHUNKS}: choose larger chunks="
        )
    if grid.block_nbytes > MAX_BLOCKSIZE:
        raise ValueError(
            f"blocks {blocks} of {dtype} have {grid.block_nbytes} bytes, "
            f"the maximum is {MAX_BLOCKSIZE}: choose smaller blocks="
        )
    return grid


def _check_metadata(plan: FramePlan) -> None:
    """Check that header and trailer have room for the metadata."""
    if "b2nd" in plan.meta or "caterva" in plan.meta:
        raise ValueError(
            "meta=: the names b2nd and caterva belong to the array's own metalayers; choose others"
        )
    if plan.caterva and plan.grid.ndim > MAX_CATERVA_NDIM:
        raise ValueError(
            f"caterva=True: the array has {plan.grid.ndim} dimensions, Caterva has at most "
            f"{MAX_CATERVA_NDIM}; omit caterva="
        )
    room = MAX_METALAYERS - 1 - plan.caterva
    own = 1 + plan.stats
    if len(plan.meta) > room or len(plan.vlmeta) + own > MAX_METALAYERS:
        what = "checksums and statistics" if plan.stats else "checksums"
        raise ValueError(
            f"too many entries: {len(plan.meta)} of meta= and {len(plan.vlmeta)} of vlmeta=. A "
            f"frame has room for {room} of meta= and, beside its {what}, for "
            f"{MAX_METALAYERS - own} of vlmeta=; put several values into one entry"
        )
    header_len = len(plan.header())
    if header_len > MAX_HEADER_LEN:
        raise ValueError(
            f"meta=: the header would have {header_len} bytes, the maximum is {MAX_HEADER_LEN}; "
            "put large entries into vlmeta="
        )


def _warn_of_delta(plan: FramePlan) -> None:
    """Warn about a filter that python-blosc2 decodes incorrectly."""
    several = plan.grid.blocks != plan.grid.chunks
    if DELTA_FILTER in plan.compression.filters and several and plan.dtype.itemsize > 1:
        warnings.warn(
            "python-blosc2 misreads slices of arrays with the delta filter if chunks have several "
            "blocks (b2nd_dask does not): choose blocks= as large as chunks=, or another filter",
            UserWarning,
            stacklevel=level_of_caller(),
        )
