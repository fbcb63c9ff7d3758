"""Options of a frame: what a user asks of a new one, and checks of them against an existing one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.open.opening import MAX_NBYTES
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import check_storable, halved, plan_frame
from b2nd_dask.frame.write.update import differing_options, has_caterva
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.write.source_metadata import packed_metadata

#: A frame chunk is the unit of reading and of memory: bigger dask blocks are stored as several.
LARGEST_DEFAULT_CHUNK = 32 << 20
#: Smaller ones cost more time for the task, the index and the file than for their elements.
SMALLEST_DEFAULT_CHUNK = 1 << 20
#: Fewer dask blocks than this are written as they are, however small.
MANY_BLOCKS = 100
#: Of larger arrays dask would list too many; the format has room for as many chunks.
_MOST_BLOCKS = 1 << 28


@dataclass(frozen=True, eq=False)
class FrameOptions:
    """The options of a new frame, as a user gave them to `to_b2nd`."""

    chunks: Any
    blocks: Any
    cparams: Any
    meta: Mapping[str, Any] | str | None
    vlmeta: Mapping[str, Any] | str | None
    contiguous: bool
    caterva: bool
    stats: bool = False

    @property
    def given(self) -> list[str]:
        """Names of the options that were given, without the booleans, which have defaults."""
        names = ("chunks", "blocks", "cparams", "meta", "vlmeta")
        return [name for name in names if getattr(self, name) is not None]


def new_plan(array: da.Array, options: FrameOptions) -> FramePlan:
    """Plan the frame that an array is written to; errors as for `plan_frame`."""
    chunks = _chunk_shape(array, options.chunks)
    return plan_frame(
        array.shape,
        array.dtype,
        chunks=chunks,
        blocks=_block_shape(options.blocks, chunks),
        cparams=options.cparams,
        meta=packed_metadata(array, "meta", options.meta),
        vlmeta=packed_metadata(array, "vlmeta", options.vlmeta),
        sparse=not options.contiguous,
        caterva=options.caterva,
        stats=options.stats,
    )


def array_like(shape: Any, dtype: Any, chunks: Any) -> da.Array:
    """Make an array of zeros, in dask's blocks unless the sizes of `chunks` are given.

    Raises
    ------
    TypeError
        It is no dtype, or one that a frame cannot hold.
    ValueError
        It is no shape, or one that is beyond the format.
    """
    try:
        elements = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype={dtype!r} is no dtype: {error}") from None
    if not elements.itemsize:
        raise TypeError(f"dtype={dtype!r} has no length: give it one, as in {elements.str[:2]}20")
    check_storable(elements)
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sizes):
        raise ValueError(f"shape={shape!r} is not a number of elements for each axis")
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape={shape!r}: lengths are 0 or more")
    nbytes = math.prod(max(int(n), 1) for n in sizes) * elements.itemsize
    if nbytes > MAX_NBYTES:
        raise ValueError(f"shape={shape!r} of {elements} has {nbytes} bytes, {MAX_NBYTES} is most")
    # dask lists the lengths of blocks
    blocks = sizes if chunks is not None and _are_sizes(chunks) else "auto"
    if blocks == "auto" and nbytes > LARGEST_DEFAULT_CHUNK * _MOST_BLOCKS:
        raise ValueError(f"shape={shape!r} is too large for the default of chunks=: give chunks=")
    zeros: da.Array = da.zeros(sizes, dtype=elements, chunks=blocks)
    return zeros


def check_append_options(frame: FrameReference, array: da.Array, options: FrameOptions) -> None:
    """Check that the options given with an append match the existing frame.

    Parameters
    ----------
    frame : FrameReference
        The existing frame.
    array : dask.array.Array
        What is appended.
    options : FrameOptions
        What is left out of it is not compared.

    Raises
    ------
    ValueError
        The frame has other values.
    """
    if not options.given:
        return
    differing = differing_options(frame, new_plan(array, options))
    if not _are_sizes(options.chunks):
        differing.discard("chunks")
    other = [name for name in options.given if name in differing]
    if other:
        raise ValueError(
            f"{' and '.join(other)}: the frame that is there has other values, and an append does "
            'not change them; leave out what differs, or write a new frame with mode="w"'
        )


def check_region_options(frame: FrameReference, options: FrameOptions) -> None:
    """Check that the booleans among the options match the existing frame; defaults always do.

    Raises
    ------
    ValueError
        The frame is one file and not sparse, or has no metalayer of Caterva or no statistics.
    """
    if not options.contiguous and not frame.parsed.header.sparse:
        raise ValueError(
            "contiguous=False: the frame that is there is one file, and a change leaves it so; "
            'leave contiguous= out, or write a new frame with mode="w"'
        )
    if options.caterva and not has_caterva(frame):
        raise ValueError(
            "caterva=True: the frame that is there has no metalayer of Caterva, and a change adds "
            'none; leave caterva= out, or write a new frame with mode="w"'
        )
    if options.stats and frame.statistics is None:
        raise ValueError(
            "stats=True: the frame that is there has no statistics of its chunks, and a change of "
            "some of them adds none; b2nd_dask.add_stats does: call it, and leave stats= out"
        )


def _are_sizes(chunks: Any) -> bool:
    """Whether chunks are numbers of elements; -1, "auto" and others depend on the array."""
    parts = np.ravel(np.array(chunks, object))
    return all(isinstance(part, int | np.integer) and part > 0 for part in parts)


def _chunk_shape(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """Choose the shape of chunks, or resolve the user's `chunks`.

    The default chunk is dask's largest block, halved along its longest axes until it has no more
    than `LARGEST_DEFAULT_CHUNK` bytes. Of `MANY_BLOCKS` and more, as many neighbours are one chunk
    as it needs to have `SMALLEST_DEFAULT_CHUNK` bytes.
    """
    return _default_shape(arr) if chunks is None else _resolved_shape(arr, chunks)


def _block_shape(blocks: Any, chunks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Resolve the user's `blocks`; None leaves the choice to the frame."""
    return None if blocks is None else _per_axis("blocks", blocks, len(chunks))


def _default_shape(arr: da.Array) -> tuple[int, ...]:
    sizes = [max(1, *axis) if axis else 1 for axis in arr.chunks]
    sizes = _grouped(sizes, arr.shape, arr.dtype.itemsize)
    return halved(sizes, arr.dtype.itemsize, LARGEST_DEFAULT_CHUNK)


def _grouped(sizes: list[int], shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Group whole blocks where they are many and tiny."""
    counts = [-(-n // size) for n, size in zip(shape, sizes, strict=True)]
    nbytes = math.prod(sizes) * itemsize
    if math.prod(counts) < MANY_BLOCKS or nbytes >= SMALLEST_DEFAULT_CHUNK:
        return sizes
    factors = [1] * len(sizes)
    left = list(counts)
    # along the axis that is cut the most: the sizes of maps stay where only time was cut
    while math.prod(factors) * nbytes < SMALLEST_DEFAULT_CHUNK and max(left) > 1:
        axis = left.index(max(left))
        factors[axis] = min(2 * factors[axis], counts[axis])
        left[axis] = -(-counts[axis] // factors[axis])
    # without a rest, if possible: an append of as many elements begins where a chunk begins
    even = [
        next((k for k in range(factor, 4 * factor) if count % k == 0), factor)
        for factor, count in zip(factors, counts, strict=True)
    ]
    return [min(n, size * k) for n, size, k in zip(shape, sizes, even, strict=True)]


def _resolved_shape(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """The user's chunks: sizes, which may exceed the shape, or what only dask can resolve."""
    if isinstance(chunks, dict):
        chunks = {axis: _one_size(n, arr.shape, axis) for axis, n in chunks.items()}
    elif isinstance(chunks, tuple | list) and len(chunks) == arr.ndim:
        chunks = tuple(_one_size(n, arr.shape, axis) for axis, n in enumerate(chunks))
    parts = chunks.values() if isinstance(chunks, dict) else np.ravel(np.array(chunks, object))
    if not isinstance(chunks, dict | str) and not any(p in (-1, None, "auto") for p in parts):
        return _per_axis("chunks", chunks, arr.ndim)
    try:
        resolved = normalize_chunks(chunks, arr.shape, dtype=arr.dtype, previous_chunks=arr.chunks)
    except (TypeError, ValueError) as error:
        raise ValueError(f"chunks={chunks!r} for the shape {arr.shape}: {error}") from error
    return tuple(max(1, *axis, 1) for axis in resolved)


def _one_size(lengths: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The size of chunks whose lengths along an axis are listed, as dask lists them."""
    if not isinstance(lengths, tuple | list):
        return lengths
    size, n = next(iter(lengths), 0), shape[axis]
    if not isinstance(size, int | np.integer) or size < 1 or steps(n, int(size)) != tuple(lengths):
        raise ValueError(
            f"chunks= lists {tuple(lengths)!s:.60} along axis {axis}, of {n} elements: chunks of a "
            "frame have one size, and the last is what is left; give that size"
        )
    return int(size)


def _per_axis(name: str, sizes: Any, ndim: int) -> tuple[int, ...]:
    given = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,) * ndim
    if len(given) != ndim or any(
        not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1 for n in given
    ):
        raise ValueError(f"{name}={sizes!r} is not one positive size for each of {ndim} axes")
    return tuple(int(n) for n in given)
