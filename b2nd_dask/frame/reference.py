"""`FrameReference`: how a task names one version of a frame, and reads it."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.array_meta import users_meta
from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, Verify
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.points import read_points
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, read_costs
from b2nd_dask.frame.read.reduce import (
    Predicate,
    pruned_share,
    read_pruned,
    reduce_region,
    unanswered_nbytes,
)
from b2nd_dask.frame.read.reduction import PartialResult, Reduction
from b2nd_dask.frame.read.region import expected_reads, read_region
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Item, Location, reading_ahead


class FrameReference:
    """One version of a frame: where it is, and the shape, dtype and chunks of its array.

    Pickles as these few values. A process opens the frame when it first reads from it, and gets
    that version or `StaleFrameError`. May be shared by threads.
    """

    def __init__(
        self,
        location: Location,
        version: str,
        grid: Grid,
        fill: Fill,
        verify: Verify,
        since: bytes | None = None,
    ) -> None:
        self.location = location
        self.version = version
        self.grid = grid
        self._fill = fill
        self._verify: Verify = verify
        # token of the state from which on updates of this package are followed
        self._since = since
        # opened at the first read: a scheduler that passes references on may not see their files
        self._state: _State | None = None
        self._pid = os.getpid()

    @classmethod
    def of(
        cls, opened: OpenedFrame, location: Location, fill: Fill, verify: Verify
    ) -> FrameReference:
        """Refer to a frame that the cache of this process has opened."""
        replace(opened, verify=verify).require_checksums()
        reference = cls(location, opened.version, opened.parsed.grid, fill, verify)
        reference._state = _State(weakref.ref(opened), opened.parsed)
        return reference

    @property
    def fields(self) -> tuple[Location, str, Grid, Fill, Verify]:
        """What it was made of, and pickles as."""
        # a grid without what it has cached
        return self.location, self.version, replace(self.grid), self._fill, self._verify

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(FrameReference, *self.fields, *([self._since] if self._since else ()))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # no storage options and no secrets of a URL: keys are shown and stored
        uninit = self._fill.uninit
        return (
            # names of arrays, by which an interrupted write is found again, depend on this
            "b2nd_dask.Frame",
            self.location.label,
            self.location.fingerprint,
            self.version,
            repr(self.dtype),
            None if uninit is None else uninit.tobytes(),
            self._verify,
            *([self._since] if self._since else ()),
        )

    def __repr__(self) -> str:
        return f"<FrameReference {self.description}>"

    @property
    def label(self) -> str:
        """Path, or URL without secrets."""
        return self.location.label

    @property
    def description(self) -> str:
        """Path, shape, dtype and chunks, for messages."""
        return f"{self.location.label}: shape {self.shape}, {self.dtype}, chunks {self.chunks}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.grid.shape

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a frame chunk along each axis."""
        return self.grid.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of a block along each axis."""
        return self.grid.blocks

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self._fill.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.grid.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the frame is one file."""
        return not self.parsed.header.sparse

    @property
    def is_remote(self) -> bool:
        """Whether reads are requests to a store, rather than of a local file or of memory."""
        return self.location.is_url

    @property
    def parsed(self) -> ParsedFrame:
        """The parsed metadata; opens the frame where this process has not yet."""
        return self._known.parsed

    @cached_property
    def meta(self) -> MetaView:
        """The user's fixed metalayers as Python objects."""
        of_user = users_meta(self.parsed.header.metalayers)
        return MetaView(of_user, self.location.label, compressed=False)

    @cached_property
    def vlmeta(self) -> MetaView:
        """The user's variable-length metalayers as Python objects."""
        return MetaView(self.parsed.vlmeta, self.location.label, compressed=True)

    @property
    def statistics(self) -> ChunkStatistics | None:
        """Statistics of the chunks as they are, in C order of the chunk grid; None if none."""
        return self.parsed.statistics

    @property
    def repeats_one_element(self) -> bool:
        """Whether all chunks repeat one element, as far as this process knows the frame."""
        parsed = self._parsed_here
        return parsed is not None and bool(parsed.index.single_kind)

    @property
    def frames(self) -> tuple[FrameReference]:
        """The frame itself, as `JoinedReference.frames`."""
        return (self,)

    def chunk_kinds(self) -> NDArray[np.uint8]:
        """`ChunkKind` of each chunk by the offset index, in the shape of the chunk grid."""
        return self.parsed.index.kinds.reshape(self.grid.counts)

    def following(self) -> FrameReference:
        """Refer to the same frame, which others may update while it is read.

        An element is then that of this state or of a later one that updates of this package have
        made of it: whoever reads has to find out which chunks they wrote.
        """
        followed = FrameReference(*self.fields, since=self.parsed.token)
        followed._state, followed._pid = self._state, self._pid
        return followed

    def _require_current(self, opened: OpenedFrame) -> None:
        if self._since is None:
            opened.require_current()
        elif not opened.is_current():
            # what was read of it is there still: updates only add
            process_cache().current(self.location).require_descendant(opened.parsed.token)

    def read(self, index: Any, threads: int = 1) -> Any:
        """Read a basic index, as NumPy has it.

        Parameters
        ----------
        threads : int
            How many decode.

        Returns
        -------
        ndarray or scalar
            Read-only and of zero strides where one element fills the region.
        """
        selection = parse_selection(index, self.shape)
        ahead = reading_ahead(self.expected_reads(selection.axes))
        with ahead if self.is_remote else nullcontext():
            elements = self.read_axes(selection.axes, threads)
        # `elements[()]` of a 0-d array would be a scalar, of native byte order: another dtype
        return elements[selection.finish] if selection.finish else elements

    def read_axes(
        self,
        axes: tuple[range, ...],
        threads: int = 1,
        batch_nbytes: int | None = None,
        into: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Read the region of ascending positions along each axis; see `read_region`."""
        with self.reading() as (opened, fill):
            return read_region(opened, axes, fill, threads, batch_nbytes, into)

    def read_pruned(self, axes: tuple[range, ...], predicate: Predicate) -> NDArray[Any]:
        """As `read_axes`, without the chunks that a predicate prunes; see `read_pruned`."""
        with self.reading() as (opened, fill):
            return read_pruned(opened, axes, fill, predicate)

    def reduce(self, axes: tuple[range, ...], how: Reduction) -> PartialResult:
        """Reduce a region of at least one element while it is read, without an array of it."""
        with self.reading() as (opened, fill):
            return reduce_region(opened, axes, fill, how)

    @property
    def has_statistics(self) -> bool:
        """Whether there may be statistics: False only where this process knows of none."""
        parsed = self._parsed_here
        return parsed is None or parsed.columns.entry is not None

    def pruned_share(self, predicate: Predicate) -> float:
        """Which part of the chunks a predicate prunes; 0 where that is not known here.

        Reads nothing.
        """
        parsed = self._parsed_here
        return 0.0 if parsed is None else pruned_share(parsed, predicate)

    def unanswered_nbytes(self, axes: tuple[range, ...], how: Reduction) -> int | None:
        """Bytes of elements that a reduction reads, since statistics do not answer it.

        None where this process has not opened the frame, or it has no statistics. Reads nothing.
        """
        parsed = self._parsed_here
        return None if parsed is None else unanswered_nbytes(parsed, axes, how)

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """What reading regions would take, without reading any."""
        return read_costs(self._ready()[0], regions)

    def expected_reads(self, axes: tuple[range, ...]) -> Iterator[Item]:
        """What reading a region requests first of a store; nothing where no prefetch can help."""
        # one that was closed meanwhile is opened by whoever reads it: that takes requests
        opened = process_cache().known(self.location, self.version) if self.is_remote else None
        if opened is not None:
            yield from expected_reads(replace(opened, verify=self._verify), axes)

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Read single elements by their coordinates; see `read_points`."""
        with self.reading() as (opened, fill):
            return read_points(opened, coords, fill)

    @contextmanager
    def reading(self) -> Iterator[tuple[OpenedFrame, Fill]]:
        """Open the frame; drop what was read of it if it changed meanwhile."""
        opened, fill = self._ready()
        try:
            yield opened, fill
        except B2ndError as error:
            self._require_current(opened)
            raise error.located(path=self.location.label) from error.__cause__
        if opened.reader.identity_is_cheap:
            self._require_current(opened)

    def _ready(self) -> tuple[OpenedFrame, Fill]:
        known = self._known
        opened = known.opened() or self._open(known.parsed)
        return replace(opened, verify=self._verify), self._fill

    def _open(self, parsed: ParsedFrame | None = None) -> OpenedFrame:
        if self._since is None:
            return process_cache().open(self.location, self.version, parsed)
        present = process_cache().current(self.location)
        present.require_descendant(self._since)
        return present

    @property
    def _own_state(self) -> _State | None:
        # after a fork the parent's connections are not ours
        return self._state if self._pid == os.getpid() else None

    @property
    def _parsed_here(self) -> ParsedFrame | None:
        """The metadata, where this process has opened the frame."""
        if state := self._own_state:
            return state.parsed
        opened = process_cache().known(self.location, self.version)
        return opened.parsed if opened else None

    @property
    def _known(self) -> _State:
        if known := self._own_state:
            return known
        opened = self._open()
        replace(opened, verify=self._verify).require_checksums()
        self._state = known = _State(weakref.ref(opened), opened.parsed)
        self._pid = os.getpid()
        return known


class _State(NamedTuple):
    """What a reference keeps of its opened frame: the metadata, the file while the cache has it.

    References may be many more than the files that a process may hold open.
    """

    opened: weakref.ref[OpenedFrame]
    parsed: ParsedFrame
