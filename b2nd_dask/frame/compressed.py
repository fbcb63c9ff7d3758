"""A compressed array in memory: the bytes of a frame, read in parts like a frame in a file."""

from __future__ import annotations

import math
from pickle import PickleBuffer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import chunk_digest
from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.region import read_region
from b2nd_dask.frame.write.new_frame import FramePlan, check_storable, halved, plan_frame
from b2nd_dask.frame.write.transaction import Envelope
from b2nd_dask.frame.write.writer import encode_elements
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Location

#: Small chunks repeat one value more often, and then take a few bytes; but each chunk costs about
#: 50 microseconds.
CHUNK_NBYTES = 4 << 20
#: Arrays of at least this size keep their parsed frame (some kilobytes); parsing takes 0.5 ms.
KEPT_FROM = 1 << 20

#: Bitshuffle exploits bits that rounding has made equal.
DEFAULT_CPARAMS = {"filters": ["bitshuffle"]}


class CompressedArray:
    """An array as a contiguous frame in memory; indexing decompresses only the blocks it touches.

    `sys.getsizeof`, and so `dask.sizeof`, return the size of the compressed bytes. The pickle has
    these bytes; pickle protocol 5 does not copy them.

    Examples
    --------
    >>> import sys
    >>> few = compress(np.arange(1000000) // 1000)
    >>> few.shape, few[500000:500002], sys.getsizeof(few) < 100000
    ((1000000,), array([500, 500]), True)
    """

    __slots__ = ("_data", "_kept", "dtype", "shape")

    def __init__(self, data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        # the bytes may be a part of a larger message buffer
        self._data = bytes(data)
        self._kept: OpenedFrame | None = None
        self.shape = shape
        self.dtype = dtype

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        data: Any = PickleBuffer(self._data) if protocol >= 5 else self._data
        return reduced(CompressedArray, data, self.shape, self.dtype)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self._data)

    def __repr__(self) -> str:
        return f"<CompressedArray shape {self.shape}, {self.dtype}, {len(self._data)} bytes>"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def cbytes(self) -> int:
        """Bytes of memory of the compressed elements."""
        return len(self._data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a compressed array cannot become an array without a copy")
        return np.asarray(self[...], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Read the elements of an index, as in NumPy; if it is not basic, this decodes all blocks.

        Raises
        ------
        IndexError
            As in NumPy.
        """
        try:
            selection = parse_selection(index, self.shape)
        except IndexError:
            return self[...][index]
        elements: Any = read_region(self._opened(), selection.axes, Fill.of(self.dtype, None))
        # a repeated value is returned as a view of one element
        return writable(elements[selection.finish] if selection.finish else elements)

    def _opened(self) -> OpenedFrame:
        """Open the frame; a large array keeps it open."""
        if self._kept is not None:
            return self._kept
        reader = Location.of(self._data).open()
        opened = OpenedFrame(reader, parse_frame(reader))
        if math.prod(self.shape) * self.dtype.itemsize >= KEPT_FROM:
            self._kept = opened
        return opened


def memory_plan(shape: tuple[int, ...], dtype: np.dtype[Any], cparams: Any) -> FramePlan:
    """Plan the frame of an array in memory; raises as `plan_frame`, and for invalid dtypes."""
    check_storable(dtype)
    return plan_frame(
        shape,
        dtype,
        chunks=halved([max(1, n) for n in shape], dtype.itemsize, CHUNK_NBYTES),
        cparams=DEFAULT_CPARAMS if cparams is None else cparams,
    )


def compress(elements: NDArray[Any], cparams: Any = None) -> CompressedArray:
    """Compress an array in the calling thread, with `cparams` as for `to_b2nd`.

    By default these are `DEFAULT_CPARAMS`. Raises `TypeError` for a masked array, or a dtype that a
    frame cannot hold.
    """
    if isinstance(elements, np.ma.MaskedArray):
        raise TypeError("a masked array cannot be compressed: pass da.ma.filled(x, value)")
    plan = memory_plan(elements.shape, elements.dtype, cparams)
    return CompressedArray(_frame_of(elements, plan), elements.shape, elements.dtype)


def _frame_of(elements: NDArray[Any], plan: FramePlan) -> bytes:
    """Build a contiguous frame of an array, with checksums."""
    grid = plan.grid
    table = np.zeros(grid.nchunks, plan.row["entry"])
    payloads: list[bytes] = []
    cbytes = 0
    for chunk in range(grid.nchunks):
        inside = (slice(along.start, along.stop) for along in grid.extent(chunk))
        # the ellipsis makes the result of a 0-d array an array
        where: tuple[Any, ...] = (*inside, ...)
        encoded, _ = encode_elements(elements[where], plan)
        if isinstance(encoded, int):
            table["offset"][chunk] = encoded
            continue
        table[chunk] = cbytes, chunk_digest(encoded)
        payloads.append(encoded)
        cbytes += len(encoded)
    head, tail = Envelope.planned(plan, None).build(table, cbytes)
    return b"".join([head, *payloads, tail])
