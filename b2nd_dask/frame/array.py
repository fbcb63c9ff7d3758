"""`Frame`: one opened frame, as users index it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.compression import cparams_of
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.frame_stats import ChunkStats, FrameStats
from b2nd_dask.frame.info import FrameInfo, info_of
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.frame.read.region import own_threads
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.lazy import lazy


class Frame:
    """An array in a frame: metadata, and elements by NumPy's basic indexing.

    Made by `open_b2nd`. Pickles as a reference: another process opens the same version of the
    frame when it first reads from it, or raises `StaleFrameError`. Shape, dtype and chunks travel
    with the reference. May be shared by threads.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the use of this object: what needs the file raises `ValueError` from now on.

        `path`, `shape`, `dtype` and what follows from them remain. Dask arrays that were made of
        the frame, and other `Frame` objects of it, go on: the files that a process reads are kept
        in one cache, which closes those that were not used for long.
        """
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def path(self) -> str:
        """Path, or URL without secrets; a description for a frame in memory."""
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
        """Compression ratio, `nbytes` / `cbytes`; 0.0 where no chunk has data."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0

    @property
    def cparams(self) -> Any:
        """How chunks are compressed: a `blosc2.CParams`, as `NDArray.cparams` of python-blosc2.

        It goes into ``to_b2nd(..., cparams=...)`` as it is: `blocksize` is left out, since `blocks`
        gives the blocks.
        """
        reference = self._reference
        return cparams_of(reference.parsed.header.compression, reference.grid.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the frame is one file, rather than a directory with a file for each chunk."""
        return self._reference.contiguous

    @property
    def meta(self) -> MetaView:
        """Fixed metalayers as Python objects, without the array's own; decoded when asked for."""
        return self._reference.meta

    @property
    def vlmeta(self) -> MetaView:
        """Variable-length metalayers as Python objects, decoded when asked for."""
        return self._reference.vlmeta

    @property
    def attrs(self) -> MetaView:
        """The user's attributes: another name of `vlmeta`, as in python-blosc2."""
        return self.vlmeta

    @property
    def info(self) -> FrameInfo:
        """Summary to print: layout, codec, kinds of chunks, metalayers, state of the checksums."""
        return info_of(self._reference)

    @property
    def stats(self) -> FrameStats | None:
        """Statistics of the elements and of each chunk; None where the frame has none.

        ``to_b2nd(..., stats=True)`` writes them, and `b2nd_dask.add_stats` adds them. A change by
        other software makes them void.
        """
        columns, native = self._reference.statistics, self.dtype.newbyteorder("=")
        if columns is None:
            return None
        return FrameStats(ChunkStats(columns, self._reference.grid, native))

    @property
    def version(self) -> str:
        """Text that changes with the content of the frame."""
        return self._opened.version

    def chunk_kinds(self) -> NDArray[np.uint8]:
        """What the offset index says of each chunk, without reading any.

        Returns
        -------
        ndarray of uint8
            `ChunkKind` codes of the shape of the chunk grid; read-only.
        """
        return self._reference.chunk_kinds()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d frame")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        # an iterator would otherwise decode each chunk once for every index along the first axis
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
        """Elements of a basic index, as NumPy has them.

        Parameters
        ----------
        index : int, slice, Ellipsis, None, or a tuple of these

        Returns
        -------
        ndarray or scalar
            A new, writable array; a scalar where an integer is given for each axis.

        Raises
        ------
        IndexError
            Out of bounds, or not a basic index.
        CorruptChunkError
            A chunk that is damaged; `ChecksumError` where its checksum differs.
        StaleFrameError
            The file changed since it was opened.
        ValueError
            The frame is closed.
        """
        elements = writable(self._reference.read(index, threads=self._threads or own_threads()))
        # `read` keeps a 0-d array an array; NumPy gives a scalar
        return elements[()] if isinstance(index, tuple) and not index else elements

    @property
    def _reference(self) -> FrameReference:
        if self._closed:
            raise ValueError(f"{self.path}: this Frame is closed; open it again with open_b2nd")
        return self._opened


def reference_of(frame: Frame) -> FrameReference:
    """The reference that tasks carry instead of an open frame; ValueError if that is closed."""
    return frame._reference
