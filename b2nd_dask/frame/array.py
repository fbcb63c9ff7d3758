"""`Frame`: the array-like of one opened frame."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.compression import cparams_of
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.chunk_table import ChunkStats, FrameStats
from b2nd_dask.frame.info import FrameInfo, info_rows
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.frame.read.region import own_threads
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.lazy import lazy


class Frame:
    """An array in a frame: its metadata, and its elements by NumPy's basic indexing.

    `open_b2nd` creates it. It pickles as a reference with shape, dtype and chunks: another process
    opens the same version of the frame at its first read, or raises `StaleFrameError`. Threads may
    share it.
    """

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "frame_html")

    def __init__(self, reference: FrameReference, threads: int | None = None) -> None:
        self._opened = reference
        self._threads = threads
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Frame, (self._reference, self._threads)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self._opened.__dask_tokenize__()

    def __repr__(self) -> str:
        return f"<Frame {self._opened.description}{' (closed)' * self._closed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this object: operations that need the file raise `ValueError` from now on.

        Properties such as `path`, `shape` and `dtype` remain. Dask arrays and other `Frame` objects
        of the frame stay usable: each process keeps its open files in one cache, which closes files
        that were not used recently.
        """
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def path(self) -> str:
        """Path, or URL without secrets; for a frame in memory, a description."""
        return self._opened.location.label

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._opened.shape

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a frame chunk along each axis."""
        return self._opened.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of a block along each axis."""
        return self._opened.blocks

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self._opened.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._opened.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nchunks(self) -> int:
        """Number of chunks, special ones included."""
        return self._opened.grid.nchunks

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, uncompressed."""
        return self._opened.nbytes

    @property
    def cbytes(self) -> int:
        """Bytes of the compressed data."""
        return self._reference.parsed.header.cbytes

    @property
    def cratio(self) -> float:
        """Compression ratio, `nbytes` / `cbytes`; 0.0 if no chunk has data."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0

    @property
    def cparams(self) -> Any:
        """Compression parameters: a `blosc2.CParams`, like `NDArray.cparams` of python-blosc2.

        ``to_b2nd(..., cparams=...)`` accepts it: `blocksize` is omitted, since `blocks` has the
        block shape.
        """
        reference = self._reference
        return cparams_of(reference.parsed.header.compression, reference.grid.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the frame is one file rather than a directory with one file per chunk."""
        return not self._reference.parsed.header.sparse

    @property
    def meta(self) -> MetaView:
        """Fixed metalayers as Python objects, without the array's own; decoded on access."""
        return self._reference.meta

    @property
    def vlmeta(self) -> MetaView:
        """Variable-length metalayers as Python objects, decoded on access."""
        return self._reference.vlmeta

    @property
    def attrs(self) -> MetaView:
        """The user's attributes: an alias of `vlmeta`, as in python-blosc2."""
        return self.vlmeta

    @property
    def info(self) -> FrameInfo:
        """Printable summary: layout, codec, kinds of chunks, metalayers, state of the checksums."""
        return FrameInfo(info_rows(self._reference))

    @property
    def stats(self) -> FrameStats | None:
        """Statistics of the elements and of each chunk; None if the frame has none.

        ``to_b2nd(..., stats=True)`` writes them, and `b2nd_dask.add_stats` adds them. A change by
        other software invalidates them.
        """
        columns, native = self._reference.parsed.statistics, self.dtype.newbyteorder("=")
        if columns is None:
            return None
        return FrameStats(ChunkStats(columns, self._reference.grid, native))

    @property
    def version(self) -> str:
        """Text that identifies the content of the frame and changes with it."""
        return self._opened.version

    def chunk_kinds(self) -> NDArray[np.uint8]:
        """Return the kind of each chunk from the offset index, without reading chunks.

        Returns
        -------
        ndarray of uint8
            `ChunkKind` codes in the shape of the chunk grid; read-only.
        """
        return self._reference.chunk_kinds()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d frame")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        # the default iterator would decode each chunk once per index along the first axis
        if not self.shape:
            raise TypeError("iteration over a 0-d frame")
        return self._elements()

    def _elements(self) -> Iterator[Any]:
        step = max(1, self.chunks[0])
        for start in range(0, len(self), step):
            yield from self[start : start + step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a frame cannot become an array without a copy")
        return np.asarray(self[...], dtype)

    def __getitem__(self, index: Any) -> Any:
        """Read the elements of a basic index, as in NumPy.

        Parameters
        ----------
        index : int, slice, Ellipsis, None, or a tuple of these

        Returns
        -------
        ndarray or scalar
            A new, writable array; a scalar if all axes have an integer.

        Raises
        ------
        IndexError
            The index is out of bounds or not basic.
        CorruptChunkError
            A chunk is damaged; `ChecksumError` if its checksum differs.
        StaleFrameError
            The frame changed after it was opened.
        ValueError
            The frame is closed.
        """
        elements = writable(self._reference.read(index, threads=self._threads or own_threads()))
        # `read` returns a 0-d array, NumPy a scalar
        return elements[()] if isinstance(index, tuple) and not index else elements

    @property
    def _reference(self) -> FrameReference:
        if self._closed:
            raise ValueError(f"{self.path}: this Frame is closed; open it again with open_b2nd")
        return self._opened


def reference_of(frame: Frame) -> FrameReference:
    """The reference of a frame for tasks; ValueError if the frame is closed."""
    return frame._reference
