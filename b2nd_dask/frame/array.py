"""`Frame`: one opened frame, as users index it and as tasks refer to it."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.defaults import cparams_of
from b2nd_dask.format.dtypes import not_stored
from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.checksum_state import require_current, require_trust
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, Verify
from b2nd_dask.frame.read.fill import Fill
from b2nd_dask.frame.read.points import read_points
from b2nd_dask.frame.read.reduce import PartialResult, Reduction, reduce_region
from b2nd_dask.frame.read.region import own_threads, read_region
from b2nd_dask.storage import Location


class Frame:
    """An array in a frame: metadata, and elements by NumPy's basic indexing.

    Made by `open_b2nd`. Pickles as a reference: another process opens the same version of the
    frame when it first reads from it, or raises `StaleFrameError`. Shape, dtype and chunks travel
    with the reference. May be shared by threads.
    """

    def __init__(
        self, location: Location, version: str, grid: Grid, fill: Fill, verify: Verify
    ) -> None:
        self._location = location
        self._version = version
        self._grid = grid
        self._fill = fill
        self._verify: Verify = verify
        # opened at the first read: a scheduler that passes frames on may not see their files
        self._state: _State | None = None
        self._pid = os.getpid()

    @classmethod
    def of(
        cls, opened: OpenedFrame, location: Location, dtype: Any, uninit: Any, verify: Verify
    ) -> Frame:
        """Make the array of an opened frame; arguments as for `open_b2nd`."""
        require_trust(replace(opened, verify=verify))
        fill = Fill.of(_choose_dtype(opened, dtype), uninit)
        frame = cls(location, opened.version, opened.parsed.grid, fill, verify)
        frame._state = _State(weakref.ref(opened), opened.parsed)
        return frame

    def __reduce__(self) -> tuple[Any, ...]:
        # a grid without what it has cached
        return Frame, (self._location, self._version, replace(self._grid), self._fill, self._verify)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # no storage options and no secrets of a URL: keys are shown and stored
        uninit = self._fill.uninit
        return (
            "b2nd_dask.Frame",
            self._location.label,
            self._location.fingerprint,
            self._version,
            repr(self.dtype),
            None if uninit is None else uninit.tobytes(),
            self._verify,
        )

    def __repr__(self) -> str:
        label = self._location.label
        return f"<Frame {label}: shape {self.shape}, {self.dtype}, chunks {self.chunks}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._grid.shape

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a frame chunk along each axis."""
        return self._grid.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of a block along each axis."""
        return self._grid.blocks

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self._fill.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._grid.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, uncompressed."""
        return self.size * self.dtype.itemsize

    @property
    def cbytes(self) -> int:
        """Bytes of the compressed data."""
        return self.parsed.header.cbytes

    @property
    def cparams(self) -> Any:
        """How chunks are compressed: a `blosc2.CParams`, as `NDArray.cparams` of python-blosc2.

        It goes into ``to_b2nd(..., cparams=...)`` as it is: `blocksize` is left out, since `blocks`
        tells the blocks.
        """
        return cparams_of(self.parsed.header.compression, self._grid.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the frame is one file, rather than a directory with a file for each chunk."""
        return not self.parsed.header.sparse

    @property
    def is_remote(self) -> bool:
        """Whether reads are requests to a store, rather than of a local file or of memory."""
        return self._location.is_url

    @cached_property
    def meta(self) -> MetaView:
        """Fixed metalayers as Python objects, without the array's own; decoded when asked for."""
        layers = self.parsed.header.metalayers
        own = {name: raw for name, raw in layers.items() if name not in ("b2nd", "caterva")}
        return MetaView(own, self._location.label, compressed=False)

    @cached_property
    def vlmeta(self) -> MetaView:
        """Variable-length metalayers as Python objects, decoded when asked for."""
        return MetaView(self.parsed.trailer.vlmeta, self._location.label, compressed=True)

    @property
    def attrs(self) -> MetaView:
        """The user's attributes: another name of `vlmeta`, as in python-blosc2."""
        return self.vlmeta

    @property
    def parsed(self) -> ParsedFrame:
        """The parsed metadata."""
        return self._known.parsed

    @property
    def version(self) -> str:
        """Text that changes with the content of the frame."""
        return self._version

    def chunk_kinds(self) -> NDArray[np.uint8]:
        """What the offset index says of each chunk, without reading any.

        Returns
        -------
        ndarray of uint8
            `ChunkKind` codes of the shape of the chunk grid; read-only.
        """
        return self.parsed.index.kinds.reshape(self._grid.counts)

    def constant_element(self, kind: int) -> NDArray[Any] | None:
        """The element that chunks of a kind repeat.

        Parameters
        ----------
        kind : int
            A code of `chunk_kinds`.

        Returns
        -------
        ndarray or None
            0-d; None where reading such a chunk gives data or an error.
        """
        try:
            return self._fill.element(kind) if kind else None
        except B2ndError:
            return None

    def verifying(self) -> Frame:
        """The same frame, of which every chunk that is touched is read whole and verified."""
        return Frame(self._location, self._version, self._grid, self._fill, verify=True)

    def check_current(self) -> None:
        """Look whether the frame is still the one that was opened, where that costs no request.

        Raises
        ------
        StaleFrameError
            It changed.
        FileNotFoundError
            It is gone.
        """
        if not self._location.is_url:
            require_current(self._ready()[0])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d frame")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the elements of a frame cannot be had without a copy")
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
            A chunk that is damaged; `ChecksumError` where its checksum tells.
        StaleFrameError
            The file changed since it was opened.
        """
        elements = self.read(index, threads=own_threads())
        if isinstance(elements, np.ndarray) and not elements.flags.writeable:
            elements = elements.copy(order="C")
        # `read` keeps a 0-d array an array; NumPy gives a scalar
        return elements[()] if isinstance(index, tuple) and not index else elements

    def read(self, index: Any, threads: int = 1) -> Any:
        """As `__getitem__`, but a constant region may come as a read-only, zero-stride array.

        Parameters
        ----------
        index : int, slice, Ellipsis, None, or a tuple of these
        threads : int
            That decode.

        Returns
        -------
        ndarray or scalar
        """
        selection = parse_selection(index, self.shape)
        with self._reading() as (opened, fill):
            elements = read_region(opened, selection.axes, fill, threads)
        # `items[()]` of a 0-d array would be a scalar, of native byte order: not the dtype promised
        return elements[selection.finish] if selection.finish else elements

    def reduce(self, index: Any, how: Reduction) -> PartialResult:
        """Reduce a region while it is read, without an array of it.

        Parameters
        ----------
        index : tuple of slice
            With positive steps; selects at least one element.
        how : Reduction

        Returns
        -------
        mapping of str to ndarray
        """
        selection = parse_selection(index, self.shape)
        with self._reading() as (opened, fill):
            return reduce_region(opened, selection.axes, fill, how)

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Read single elements; each block that holds some is decoded once.

        Parameters
        ----------
        coords : tuple of ndarray of int64
            Positions along each axis, 1-D and of one length; none of them negative.

        Returns
        -------
        ndarray
            1-D.

        Raises
        ------
        IndexError
            Not one array for each axis, or a position out of bounds.
        """
        if len(coords) != self.ndim or not coords:
            raise IndexError(f"{len(coords)} arrays of positions for {self.ndim} axes")
        for axis, (positions, size) in enumerate(zip(coords, self.shape, strict=True)):
            if len(positions) and not 0 <= positions.min() <= positions.max() < size:
                raise IndexError(f"a position is out of bounds for axis {axis} with size {size}")
        with self._reading() as (opened, fill):
            return read_points(opened, coords, fill)

    @contextmanager
    def _reading(self) -> Iterator[tuple[OpenedFrame, Fill]]:
        """The opened frame; what was read of it is dropped if it changed meanwhile."""
        opened, fill = self._ready()
        try:
            yield opened, fill
        except B2ndError as error:
            require_current(opened)
            raise error.located(path=self._location.label) from error.__cause__
        if opened.reader.identity_is_cheap:
            require_current(opened)

    def _ready(self) -> tuple[OpenedFrame, Fill]:
        opened = self._known.opened() or process_cache().open(self._location, self._version)
        return replace(opened, verify=self._verify), self._fill

    @property
    def _known(self) -> _State:
        # after a fork the parent's connections are not ours
        if self._state is None or self._pid != os.getpid():
            opened = process_cache().open(self._location, self._version)
            require_trust(replace(opened, verify=self._verify))
            self._state = _State(weakref.ref(opened), opened.parsed)
            self._pid = os.getpid()
        return self._state


def _choose_dtype(opened: OpenedFrame, request: Any) -> np.dtype[Any]:
    """The dtype that the frame stores, or the user's where it stores none."""
    stored, itemsize = opened.parsed.stored_dtype, opened.parsed.grid.itemsize
    label = opened.reader.label
    if request is None:
        return np.dtype(f"V{itemsize}") if stored is None else stored
    wanted: np.dtype[Any] = np.dtype(request)
    reason = not_stored(wanted)
    if reason:
        raise ValueError(f"dtype={request!r}: {reason}")
    if wanted.subdtype is not None:
        raise ValueError(f"dtype={request!r}: an element is one value, not an array")
    if stored is not None and wanted != stored:
        raise ValueError(
            f"{label}: the frame's dtype is {stored}; to convert, use .astype({wanted.str!r})"
        )
    if wanted.itemsize != itemsize:
        raise ValueError(
            f"{label}: the frame's elements have {itemsize} bytes, dtype {wanted} does not fit"
        )
    return wanted


class _State(NamedTuple):
    """What an opened frame keeps: its metadata, and its file for as long as the cache does.

    Frames may be many more than the files that a process may hold open.
    """

    opened: weakref.ref[OpenedFrame]
    parsed: ParsedFrame
