"""`JoinedReference`: frames concatenated along an axis, or stacked along a new one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.frame.read.buffers import in_pages, result_pool, writable
from b2nd_dask.frame.read.decode import carrier
from b2nd_dask.frame.read.reduction import PartialResult, Reduction
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Item, Location


class FramePart(NamedTuple):
    """The part of a region in one frame."""

    frame: FrameReference
    axes: tuple[range, ...]
    """Positions in the frame."""
    out: slice
    """Position of these elements in the result, along the joined axis."""
    number: int
    """Number of the frame among the joined ones."""


class JoinedReference:
    """A reference to several frames as one array, for tasks; `FrameReference` is that of one frame.

    The frames fit, as checked by `join` of `frame/join.py`. If they are stacked, the axis is a new
    one, along which each frame has length 1. A part of another array, `whole`, starts there at
    `start`, along the axis; the whole is not pickled with it.
    """

    def __init__(
        self,
        frames: Sequence[FrameReference],
        axis: int,
        stacked: bool,
        whole: JoinedReference | None = None,
        start: int = 0,
    ) -> None:
        self.frames = tuple(frames)
        self.axis = axis
        self.stacked = stacked
        self.whole = self if whole is None else whole
        self.start = start
        lengths = [1 if stacked else frame.shape[axis] for frame in self.frames]
        self.starts: NDArray[np.int64] = np.cumsum([0, *lengths])
        """Start of each frame along the axis, and the end of the last one."""
        shape = self.frames[0].shape
        rest = shape[axis:] if stacked else shape[axis + 1 :]
        self.shape: tuple[int, ...] = (*shape[:axis], int(self.starts[-1]), *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(_unpickled, _packed(self.frames), self.axis, self.stacked)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "b2nd_dask.JoinedReference", self._digest, self.axis, self.stacked

    @cached_property
    def _digest(self) -> str:
        # dask would need seconds for ten thousand frames
        digest = xxhash.xxh3_128()
        for frame in self.frames:
            _, _, *rest = frame.__dask_tokenize__()
            digest.update(repr(rest).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"<JoinedReference {self.description}>"

    def __getitem__(self, index: Any) -> Any:
        """Read the elements of a basic index into a writable array."""
        return writable(self.read(index))

    @property
    def label(self) -> str:
        """Path or URL of the first frame of the whole, and the number of other frames."""
        frames = self.whole.frames
        return frames[0].label + (f" and {len(frames) - 1} others" if len(frames) > 1 else "")

    @property
    def description(self) -> str:
        """Number of frames, the first one, shape and dtype, for messages."""
        first = self.frames[0].label
        return f"{len(self.frames)} frames from {first} on: shape {self.shape}, {self.dtype}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self.frames[0].dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk of the first frame along each axis."""
        return self._joined(self.frames[0].chunks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of a block of the first frame along each axis."""
        return self._joined(self.frames[0].blocks)

    def _joined(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        return (*lengths[: self.axis], 1, *lengths[self.axis :]) if self.stacked else lengths

    @property
    def grid(self) -> Grid:
        """A grid for read plans: each length of a chunk or block is the largest of all frames.

        Frames have different chunks, which restart at each frame.
        """
        chunks = self._largest([frame.chunks for frame in self.frames])
        blocks = self._largest([frame.blocks for frame in self.frames])
        return Grid(self.shape, chunks, blocks, self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_remote(self) -> bool:
        """Whether reads of a frame are requests to a store."""
        return any(frame.is_remote for frame in self.frames)

    @property
    def has_statistics(self) -> bool:
        """Whether any frame may have statistics; see `FrameReference.has_statistics`."""
        return any(frame.has_statistics for frame in self.frames)

    def part(self, start: int, stop: int) -> JoinedReference:
        """Refer only to the frames with these positions of the joined axis; at least one frame."""
        first = min(self._frame_of(start), len(self.frames) - 1)
        last = max(self._frame_of(stop - 1), first)
        begin = self.start + int(self.starts[first])
        return JoinedReference(
            self.frames[first : last + 1], self.axis, self.stacked, self.whole, begin
        )

    def part_of_axes(self, axes: tuple[range, ...]) -> tuple[JoinedReference, tuple[range, ...]]:
        """Refer only to the frames of a region; also return the region's positions in them."""
        along = axes[self.axis]
        part = self.part(along[0], along[-1] + 1)
        return part, part.shifted(axes, self.start - part.start)

    def shifted(self, axes: tuple[range, ...], by: int) -> tuple[range, ...]:
        """Move a region along the joined axis."""
        along = axes[self.axis]
        moved = range(along.start + by, along.stop + by, along.step)
        return (*axes[: self.axis], moved, *axes[self.axis + 1 :])

    def split(self, axes: tuple[range, ...]) -> Iterator[FramePart]:
        """Split a region of ascending positions into parts, one per frame."""
        along = axes[self.axis]
        if not all(map(len, axes)):
            return
        for number in range(self._frame_of(along[0]), self._frame_of(along[-1]) + 1):
            start, stop = self.starts[number : number + 2].tolist()
            first = max(0, -((along.start - start) // along.step))
            last = min(len(along), -((along.start - stop) // along.step))
            if first < last:
                inner = self.shifted(
                    (*axes[: self.axis], along[first:last], *axes[self.axis + 1 :]), -start
                )
                own, out = self._of_frame(inner), slice(first, last)
                yield FramePart(self.frames[number], own, out, number)

    def expected_reads(self, axes: tuple[range, ...]) -> Iterator[Item]:
        """Chain `FrameReference.expected_reads` of the frames."""
        for part in self.split(axes):
            yield from part.frame.expected_reads(part.axes)

    def split_points(
        self, coords: tuple[NDArray[np.int64], ...]
    ) -> Iterator[tuple[FrameReference, tuple[NDArray[np.int64], ...], NDArray[np.bool_]]]:
        """Split single elements by frame: the frame, coordinates in it, mask of the elements."""
        numbers = np.searchsorted(self.starts, coords[self.axis], side="right") - 1
        for number in np.unique(numbers).tolist():
            where = numbers == number
            inner = [axis[where] for axis in coords]
            inner[self.axis] = inner[self.axis] - self.starts[number]
            yield self.frames[number], self._of_frame(tuple(inner)), where

    def read(self, index: Any) -> Any:
        """As `FrameReference.read`."""
        selection = parse_selection(index, self.shape)
        elements = self.read_axes(selection.axes)
        return elements[selection.finish] if selection.finish else elements

    def read_axes(
        self, axes: tuple[range, ...], threads: int = 1, batch_nbytes: int | None = None
    ) -> NDArray[Any]:
        """As `FrameReference.read_axes`."""
        parts = list(self.split(axes))
        if len(parts) == 1:
            return self._expanded(parts[0].frame.read_axes(parts[0].axes, threads, batch_nbytes))
        if batch_nbytes is not None:
            return self._read_bounded(axes, parts, batch_nbytes)
        out = result_pool.empty(tuple(map(len, axes)), carrier(self.dtype))
        for part in parts:
            where = (slice(None),) * self.axis + (part.out,)
            # keep no name for the elements: they are freed before the next frame is read
            out[where] = self._expanded(part.frame.read_axes(part.axes, threads)).view(out.dtype)
        return out.view(self.dtype)

    def _read_bounded(
        self, axes: tuple[range, ...], parts: Sequence[FramePart], batch_nbytes: int
    ) -> NDArray[Any]:
        """Read a region of several frames; each decodes directly into the result."""
        out = in_pages(tuple(map(len, axes)), carrier(self.dtype))
        for part in parts:
            at: Any = part.out.start if self.stacked else part.out
            where = out[(*(slice(None),) * self.axis, at, ...)]
            elements = part.frame.read_axes(part.axes, 1, batch_nbytes, where)
            if not np.may_share_memory(elements, where):
                where[...] = elements.view(out.dtype)
        return out.view(self.dtype)

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """As `FrameReference.read_points`."""
        along = coords[self.axis]
        if len(along) and not 0 <= along.min() <= along.max() < self.shape[self.axis]:
            raise IndexError(f"a position is out of bounds for axis {self.axis}")
        out = np.empty(len(along), carrier(self.dtype))
        for frame, own, where in self.split_points(coords):
            # frames without axes cannot be read by points
            found = frame.read_points(own) if own else frame.read(())
            out[where] = found.view(out.dtype)
        return out.view(self.dtype)

    def reduce(self, axes: tuple[range, ...], how: Reduction) -> PartialResult:
        """As `FrameReference.reduce`."""
        parts = list(self.split(axes))
        if len(parts) == 1 and not self.stacked:
            return parts[0].frame.reduce(parts[0].axes, how)
        if not parts[0].axes:
            return how.partial_result(self.read_axes(axes))
        own = self._reduction_of_frame(how)
        results = [self._widened(part.frame.reduce(part.axes, own)) for part in parts]
        if self.axis not in how.axis:
            return {
                name: np.concatenate([result[name] for result in results], axis=self.axis)
                for name in results[0]
            }
        total = results[0]
        for result in results[1:]:
            total = how.accumulation.merge(total, result)
        return total

    def unanswered_nbytes(self, axes: tuple[range, ...], how: Reduction) -> int | None:
        """As `FrameReference.unanswered_nbytes`."""
        if not all(axes):
            return None
        own = self._reduction_of_frame(how)
        found = [part.frame.unanswered_nbytes(part.axes, own) for part in self.split(axes)]
        return None if None in found else sum(filter(None, found))

    def _largest(self, sizes: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Compute the largest length along each axis, with 1 for a new axis."""
        return self._joined(tuple(map(max, zip(*sizes, strict=True))))

    def _frame_of(self, position: int) -> int:
        # skips empty frames: these start where the next one does
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def _of_frame(self, along_axes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Drop the entry of a new axis, which the frames do not have."""
        if not self.stacked:
            return along_axes
        return along_axes[: self.axis] + along_axes[self.axis + 1 :]

    def _expanded(self, elements: NDArray[Any]) -> NDArray[Any]:
        return np.expand_dims(elements, self.axis) if self.stacked else elements

    def _widened(self, result: PartialResult) -> PartialResult:
        return {name: self._expanded(values) for name, values in result.items()}

    def _reduction_of_frame(self, how: Reduction) -> Reduction:
        """Convert a reduction to one of the frames, without the new axis."""
        if not self.stacked:
            return how
        axis = tuple(i - (i > self.axis) for i in how.axis if i != self.axis)
        return replace(how, axis=axis, partial_result=partial(_reduced_flat, how, self.axis))


Readable = FrameReference | JoinedReference
"""Arrays that tasks read: one frame, or several joined ones."""


def _reduced_flat(how: Reduction, axis: int, elements: NDArray[Any]) -> PartialResult:
    """Reduce the elements of a stacked frame with the new axis added, then drop the axis."""
    full = how.partial_result(np.expand_dims(elements, axis))
    return {name: np.squeeze(values, axis) for name, values in full.items()}


def _packed(frames: Sequence[FrameReference]) -> tuple[Any, ...]:
    """Pack references as columns: paths and versions compressed, equal fields stored once."""
    locations, versions, grids, fills, verify = zip(*(f.fields for f in frames), strict=True)
    known: dict[Any, Any] = {}
    rows = []
    for at, grid, fill, checked in zip(locations, grids, fills, verify, strict=True):
        content = repr(fill.dtype), None if fill.uninit is None else fill.uninit.tobytes()
        fill = known.setdefault(content, fill)
        inside = at.member, at.embedded, at.nbytes
        place = at.offset, at.storage_options, *inside
        kind = at.offset, id(at.storage_options), *inside, grid, content, checked
        rows.append(known.setdefault(kind, (place, grid, fill, checked)))
    paths = [at.urlpath for at in locations]
    # the path of a frame in memory is its bytes, which are compressed already
    texts = paths if any(isinstance(p, bytes) for p in paths) else _compressed(paths)
    return texts, _compressed(versions), tuple(rows)


def _compressed(texts: Sequence[str]) -> bytes:
    return zlib.compress("\0".join(texts).encode("utf-8", "surrogateescape"), 1)


def _unpickled(packed: tuple[Any, ...], axis: int, stacked: bool) -> JoinedReference:
    paths, versions, rows = packed
    if isinstance(paths, bytes):
        paths = _decompressed(paths)
    frames = [
        FrameReference(Location(path, *place), version, grid, fill, verify)
        for path, version, (place, grid, fill, verify) in zip(
            paths, _decompressed(versions), rows, strict=True
        )
    ]
    return JoinedReference(frames, axis, stacked)


def _decompressed(data: bytes) -> list[str]:
    return zlib.decompress(data).decode("utf-8", "surrogateescape").split("\0")
