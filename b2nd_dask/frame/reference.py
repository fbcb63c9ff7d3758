"""`FrameReference`: a reference in tasks to one version of a frame, which also reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.format.metalayers import users_meta
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.open.cache import OpenedFrame, Verify, process_cache
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.positions import read_points
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, read_costs
from b2nd_dask.frame.read.reduce import (
    Predicate,
    expected_reads,
    read_pruned,
    reduce_region,
    unanswered_nbytes,
)
from b2nd_dask.frame.read.reduction import PartialResult, Reduction
from b2nd_dask.frame.read.region import read_region
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Item, Location, reading_ahead


class ArrayReference:
    """Base of references to one frame, and to several frames as one array."""

    shape: tuple[int, ...]
    """Elements along each axis."""
    chunks: tuple[int, ...]
    """Elements of a frame chunk along each axis; of several frames, those of the first."""
    blocks: tuple[int, ...]
    """Elements of a block along each axis; of several frames, those of the first."""
    dtype: np.dtype[Any]
    """Dtype of the elements."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize


class FrameReference(ArrayReference):
    """A reference to one version of a frame: location, shape, dtype and chunks of its array.

    It pickles as these few values. A process opens the frame at its first read, and gets this
    version or `StaleFrameError`. Threads may share it.
    """

    def __init__(
        self,
        location: Location,
        version: str,
        grid: Grid,
        fill: Fill,
        verify: Verify,
        since: bytes | None = None,
        new_axis: int | None = None,
        parsed: ParsedFrame | None = None,
    ) -> None:
        self.location = location
        self.version = version
        self.stored_grid = grid
        self.grid = grid if new_axis is None else grid.with_axis(new_axis)
        self.shape, self.chunks, self.blocks = self.grid.shape, self.grid.chunks, self.grid.blocks
        self.dtype = fill.dtype
        self.new_axis = new_axis
        """Axis of length 1 that the stored array lacks."""
        self._fill = fill
        self._verify: Verify = verify
        # token of the state after which updates by this package are accepted
        self._since = since
        # read at first use: a scheduler that forwards references may not see the files
        self._parsed = parsed

    @property
    def fields(self) -> tuple[Location, str, Grid, Fill, Verify]:
        """The required constructor arguments, which are pickled."""
        # `replace` makes a new grid without cached properties
        return self.location, self.version, replace(self.stored_grid), self._fill, self._verify

    def __reduce__(self) -> tuple[Any, ...]:
        more = self._since, self.new_axis
        return reduced(FrameReference, *self.fields, *(more if more != (None, None) else ()))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # no storage options and no secrets of a URL, since keys are displayed and stored
        return (
            # never changes: names of arrays depend on it, by which resume=True finds its write
            "b2nd_dask.Frame",
            self.location.label,
            self.location.fingerprint,
            self.version,
            repr(self.dtype),
            self._fill.uninit,
            self._verify,
            *(each for each in (self._since, self.new_axis) if each is not None),
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
    def is_remote(self) -> bool:
        """Whether reads are requests to a store rather than reads of a local file or memory."""
        return self.location.is_url

    @property
    def parsed(self) -> ParsedFrame:
        """The parsed metadata; opens the frame if this process has not yet."""
        if self._parsed is None:
            return self._open().parsed
        return self._with_new_axis(self._parsed)

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
    def repeats_one_element(self) -> bool:
        """Whether all chunks repeat one element; False if this process has not opened the frame."""
        parsed = self._parsed_here
        return parsed is not None and bool(parsed.index.single_kind)

    @property
    def frames(self) -> tuple[FrameReference]:
        """A tuple of the frame itself, for the interface of `JoinedReference.frames`."""
        return (self,)

    def chunk_kinds(self) -> NDArray[np.uint8]:
        """`ChunkKind` of each chunk from the offset index, in the shape of the chunk grid."""
        return self.parsed.index.kinds.reshape(self.grid.counts)

    def following(self) -> FrameReference:
        """Refer to the same frame, and accept concurrent updates by this package.

        A read returns elements of this state or of a later one. The caller must determine which
        chunks the updates wrote.
        """
        return FrameReference(*self.fields, since=self.parsed.token, parsed=self._parsed)

    def stacked(self, axis: int) -> FrameReference:
        """Refer to the same frame with a new axis of length 1."""
        return FrameReference(*self.fields, new_axis=axis, parsed=self._parsed)

    def _require_current(self, opened: OpenedFrame) -> None:
        if self._since is None:
            opened.require_current()
        elif not opened.is_current():
            # the bytes that were read are still valid, since updates only add chunks
            process_cache.present(self.location).require_descendant(opened.parsed.token)

    def read(self, index: Any, threads: int = 1) -> Any:
        """Read a basic index, as in NumPy; `threads` decode.

        The result is read-only with zero strides if one element fills the region.
        """
        selection = parse_selection(index, self.shape)
        ahead = reading_ahead(self.expected_reads(selection.axes))
        with ahead if self.is_remote else nullcontext():
            elements = self.read_axes(selection.axes, threads)
        # `elements[()]` of a 0-d array is a scalar in native byte order, which is another dtype
        return elements[selection.finish] if selection.finish else elements

    def read_axes(
        self,
        axes: tuple[range, ...],
        threads: int = 1,
        batch_nbytes: int | None = None,
        into: NDArray[Any] | None = None,
        claims: tuple[range, ...] | None = None,
    ) -> NDArray[Any]:
        """Read the region of ascending positions along each axis; see `read_region`."""
        with self.reading() as (opened, fill):
            return read_region(opened, axes, fill, threads, batch_nbytes, into, claims)

    def read_pruned(self, axes: tuple[range, ...], predicate: Predicate) -> NDArray[Any]:
        """Like `read_axes`, without the chunks that a predicate prunes; see `read_pruned`."""
        with self.reading() as (opened, fill):
            return read_pruned(opened, axes, fill, predicate)

    def reduce(self, axes: tuple[range, ...], reduction: Reduction) -> PartialResult:
        """Reduce a region of at least one element during the read, chunk by chunk."""
        with self.reading() as (opened, fill):
            return reduce_region(opened, axes, fill, reduction)

    @property
    def has_statistics(self) -> bool:
        """Whether the frame may have statistics; False only if it is known to have none."""
        parsed = self._parsed_here
        return parsed is None or parsed.columns.entry is not None

    def unanswered_nbytes(self, axes: tuple[range, ...], reduction: Reduction) -> int | None:
        """Bytes of the elements that a reduction must read, since statistics do not answer it.

        None if this process has not opened the frame, or the frame has no statistics. Reads
        nothing.
        """
        parsed = self._parsed_here
        return None if parsed is None else unanswered_nbytes(parsed, axes, reduction)

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """Estimate the cost of reading regions, without reading any."""
        return read_costs(self._open(), regions)

    def expected_reads(
        self, axes: tuple[range, ...], predicate: Predicate | None = None
    ) -> Iterator[Item]:
        """List the first requests of `read_axes`, or of `read_pruned`, to a store.

        Empty if a prefetch would not help.
        """
        # not opened here, since opening a frame sends requests
        opened = process_cache.known(self.location, self.version) if self.is_remote else None
        if opened is not None:
            yield from expected_reads(self._of_reference(opened), axes, predicate)

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Read single elements by their coordinates; see `read_points`."""
        with self.reading() as (opened, fill):
            return read_points(opened, coords, fill)

    @contextmanager
    def reading(self) -> Iterator[tuple[OpenedFrame, Fill]]:
        """Open the frame for reads in a block; raise StaleFrameError if it changed meanwhile."""
        opened = self._open()
        try:
            yield opened, self._fill
        except B2ndError as error:
            self._require_current(opened)
            raise error.located(path=self.location.label) from error.__cause__
        if opened.reader.identity_is_cheap:
            self._require_current(opened)

    def _open(self) -> OpenedFrame:
        """Get the frame from the cache, which opens it again if it was closed."""
        if self._since is None:
            stored = process_cache.open(self.location, self.version, self._parsed)
        else:
            stored = process_cache.present(self.location)
            stored.require_descendant(self._since)
        opened = self._of_reference(stored)
        opened.require_checksums()
        self._parsed = self._parsed or stored.parsed
        return opened

    def _of_reference(self, stored: OpenedFrame) -> OpenedFrame:
        return replace(stored, parsed=self._with_new_axis(stored.parsed), verify=self._verify)

    @property
    def _parsed_here(self) -> ParsedFrame | None:
        """The parsed metadata if this process has opened the frame, else None."""
        parsed = self._parsed
        if parsed is None and (opened := process_cache.known(self.location, self.version)):
            parsed = opened.parsed
        return None if parsed is None else self._with_new_axis(parsed)

    def _with_new_axis(self, parsed: ParsedFrame) -> ParsedFrame:
        return parsed if self.new_axis is None else replace(parsed, grid=self.grid)
