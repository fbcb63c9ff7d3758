"""Several frames as one array: open them concurrently, and join them if they fit.

`JoinedReference` concatenates frames along an axis; `FrameReference.stacked` adds a new one.
"""

from __future__ import annotations

import operator
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.frame.read.buffers import in_pages, result_pool, writable
from b2nd_dask.frame.read.decode import carrier
from b2nd_dask.frame.read.plan import Axes, within
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.frame.read.reduction import PartialResult, Reduction
from b2nd_dask.frame.reference import ArrayReference, FrameReference
from b2nd_dask.processes import reduced
from b2nd_dask.storage import Item, Location

#: Most concurrent requests to open frames; network file systems benefit, too.
THREADS = 16
#: Most frames that an error lists.
_LISTED = 10
#: Errors of one frame, reported together. Errors of credentials or arguments concern all frames.
_OF_ONE_FRAME = (FileNotFoundError, NotADirectoryError, B2ndError)


class FramePart(NamedTuple):
    """The part of a region in one frame."""

    frame: FrameReference
    axes: Axes
    """Positions in the frame."""
    out: slice
    """Position of these elements in the result, along the joined axis."""
    claims: Axes
    """Claims of the region (see `RegionPlan`), counted from the start of the frame."""


class JoinedReference(ArrayReference):
    """A reference in tasks to several frames as one array; `join` has checked that they fit.

    `label` is that of the whole array, if this is a part of it.
    """

    def __init__(self, frames: Sequence[FrameReference], axis: int, label: str = "") -> None:
        self.frames = tuple(frames)
        self.axis = axis
        others = f" and {len(frames) - 1} others" if len(frames) > 1 else ""
        self.label = label or frames[0].label + others
        """Path or URL of the first frame, and the number of other frames."""
        self.starts: NDArray[np.int64] = np.cumsum([0, *(frame.shape[axis] for frame in frames)])
        """Start of each frame along the axis, and the end of the last one."""
        first = self.frames[0]
        self.shape = (*first.shape[:axis], int(self.starts[-1]), *first.shape[axis + 1 :])
        self.chunks, self.blocks, self.dtype = first.chunks, first.blocks, first.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        options = tuple(frame.location.storage_options for frame in self.frames)
        packed = _pack(self.frames)
        return reduced(_unpickled, packed, options, self.axis, self.frames[0].new_axis)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "b2nd_dask.JoinedReference", self._digest, self.axis

    @cached_property
    def _digest(self) -> str:
        # for ten thousand frames, dask's own tokens would take seconds
        digest = xxhash.xxh3_128()
        for frame in self.frames:
            _, _, *rest = frame.__dask_tokenize__()
            digest.update(repr(rest).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"<JoinedReference {self.description}>"

    def __getitem__(self, index: Any) -> Any:
        """Read the elements of a basic index into a writable array."""
        selection = parse_selection(index, self.shape)
        elements = self.read_axes(selection.axes)
        return writable(elements[selection.finish] if selection.finish else elements)

    @property
    def description(self) -> str:
        """Number of frames, the first one, shape and dtype, for messages."""
        first = self.frames[0].label
        return f"{len(self.frames)} frames from {first} on: shape {self.shape}, {self.dtype}"

    @property
    def grid(self) -> Grid:
        """An approximate grid for read plans: the largest chunks and blocks of all frames.

        Frames may have different chunks, and chunks restart at each frame.
        """
        frames = self.frames
        chunks = tuple(map(max, zip(*(frame.chunks for frame in frames), strict=True)))
        blocks = tuple(map(max, zip(*(frame.blocks for frame in frames), strict=True)))
        return Grid(self.shape, chunks, blocks, self.dtype.itemsize)

    @property
    def is_remote(self) -> bool:
        """Whether reads of a frame are requests to a store."""
        return any(frame.is_remote for frame in self.frames)

    @property
    def has_statistics(self) -> bool:
        """Whether any frame may have statistics; see `FrameReference.has_statistics`."""
        return any(frame.has_statistics for frame in self.frames)

    def part_of_axes(self, axes: Axes) -> tuple[JoinedReference, Axes]:
        """Refer only to the frames of a region; also return the region's positions in them."""
        along = axes[self.axis]
        first, last = self._frame_of(along[0]), self._frame_of(along[-1])
        part = JoinedReference(self.frames[first : last + 1], self.axis, self.label)
        return part, self._counted_from(int(self.starts[first]), axes, along)

    def _counted_from(self, start: int, axes: Axes, along: range) -> Axes:
        """Replace the positions along the joined axis by `along`, counted from `start`."""
        own = range(along.start - start, along.stop - start, along.step)
        return (*axes[: self.axis], own, *axes[self.axis + 1 :])

    def split(self, axes: Axes, claims: Axes | None = None) -> Iterator[FramePart]:
        """Split a region of ascending positions into parts, one per frame."""
        along, claims = axes[self.axis], claims or axes
        if not all(map(len, axes)):
            return
        for number in range(self._frame_of(along[0]), self._frame_of(along[-1]) + 1):
            start, stop = self.starts[number : number + 2].tolist()
            own, out = within(along, slice(0, len(along)), slice(start, stop))
            if own:
                inner = self._counted_from(start, axes, own)
                claimed = self._counted_from(start, claims, claims[self.axis])
                yield FramePart(self.frames[number], inner, out, claimed)

    def expected_reads(self, axes: Axes, predicate: Predicate | None = None) -> Iterator[Item]:
        """Chain the `FrameReference.expected_reads` of all frames."""
        for part in self.split(axes):
            yield from part.frame.expected_reads(part.axes, predicate)

    def split_points(
        self, coords: tuple[NDArray[np.int64], ...]
    ) -> Iterator[tuple[FrameReference, tuple[NDArray[np.int64], ...], NDArray[np.bool_]]]:
        """Split single elements by frame: the frame, coordinates in it, mask of the elements."""
        numbers = np.searchsorted(self.starts, coords[self.axis], side="right") - 1
        for number in np.unique(numbers).tolist():
            where = numbers == number
            inner = [axis[where] for axis in coords]
            inner[self.axis] = inner[self.axis] - self.starts[number]
            yield self.frames[number], tuple(inner), where

    def read_axes(
        self,
        axes: Axes,
        threads: int = 1,
        batch_nbytes: int | None = None,
        claims: Axes | None = None,
    ) -> NDArray[Any]:
        """As `FrameReference.read_axes`."""
        parts = list(self.split(axes, claims))
        if len(parts) == 1:
            part = parts[0]
            return part.frame.read_axes(part.axes, threads, batch_nbytes, claims=part.claims)
        empty = result_pool.empty if batch_nbytes is None else in_pages
        out = empty(tuple(map(len, axes)), carrier(self.dtype))
        for part in parts:
            # the ellipsis makes the result of a 0-d array an array
            index: tuple[Any, ...] = (*(slice(None),) * self.axis, part.out, ...)
            where = out[index]
            elements = part.frame.read_axes(part.axes, threads, batch_nbytes, where, part.claims)
            if not np.may_share_memory(elements, where):
                # one element fills the part
                where[...] = elements.view(out.dtype)
        return out.view(self.dtype)

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """As `FrameReference.read_points`."""
        out = np.empty(len(coords[0]), carrier(self.dtype))
        for frame, own, where in self.split_points(coords):
            out[where] = frame.read_points(own).view(out.dtype)
        return out.view(self.dtype)

    def reduce(self, axes: Axes, reduction: Reduction) -> PartialResult:
        """As `FrameReference.reduce`."""
        results = [part.frame.reduce(part.axes, reduction) for part in self.split(axes)]
        if self.axis in reduction.axis:
            # a filter may select no element of a frame
            found = list(filter(None, results))
            return reduce(reduction.accumulation.merge, found) if found else {}
        return {
            name: np.concatenate([result[name] for result in results], axis=self.axis)
            for name in results[0]
        }

    def unanswered_nbytes(self, axes: Axes, reduction: Reduction) -> int | None:
        """As `FrameReference.unanswered_nbytes`."""
        if not all(axes):
            return None
        found = [part.frame.unanswered_nbytes(part.axes, reduction) for part in self.split(axes)]
        return None if None in found else sum(filter(None, found))

    def _frame_of(self, position: int) -> int:
        # side="right" skips empty frames, which start where the next one does
        return int(np.searchsorted(self.starts, position, side="right")) - 1


Readable = FrameReference | JoinedReference
"""Arrays that tasks read: one frame, or several joined ones."""


def open_all(
    sources: Sequence[Any], open_one: Callable[[Any], FrameReference]
) -> list[FrameReference]:
    """Open frames concurrently.

    One error names all frames that are missing or unreadable. Any other error, such as an
    unavailable store, credentials or an argument, is raised at once and stops the opening.
    """

    def attempt(source: Any) -> FrameReference | Exception:
        try:
            return open_one(source)
        except _OF_ONE_FRAME as error:
            return error

    with ThreadPoolExecutor(min(THREADS, len(sources))) as pool:
        # after any other error, `map` cancels the calls that wait for a thread
        found = list(pool.map(attempt, sources))
    errors = [each for each in found if isinstance(each, Exception)]
    if errors:
        raise _combine_errors(errors, len(sources)) from errors[0].__cause__
    return [each for each in found if isinstance(each, FrameReference)]


def _combine_errors(errors: Sequence[Exception], nsources: int) -> Exception:
    """Combine errors; the type is that of the first, so that callers catch it as for one frame."""
    first = errors[0]
    # one frame, perhaps named several times
    if len({str(error) for error in errors}) == 1:
        return first
    problem = f"{len(errors)} of {nsources} frames cannot be opened:" + _lines(map(str, errors))
    kind = type(first)
    if not isinstance(first, B2ndError):
        kind = next(each for each in _OF_ONE_FRAME if isinstance(first, each))
    return kind(problem)


def _lines(lines: Iterable[str]) -> str:
    """Format one line per frame, up to a limit."""
    lines = list(lines)
    more = [f"and {len(lines) - _LISTED} others"] if len(lines) > _LISTED else []
    return "".join(f"\n  {line}" for line in [*lines[:_LISTED], *more])


def join(frames: Sequence[FrameReference], axis: int, stacked: bool) -> JoinedReference:
    """Join frames along an axis, with `stacked` a new one; a negative axis counts from the end.

    Raises `ValueError`, which names each frame whose shape or dtype differs from most others, or if
    the frames lack the axis; `TypeError` if the axis is not an integer.
    """
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis={axis!r}: give the number of an axis") from None
    ndim = Counter(frame.ndim for frame in frames).most_common(1)[0][0] + stacked
    if not -ndim <= axis < ndim:
        what = "stacked" if stacked else "concatenated"
        raise ValueError(f"axis={axis}: the frames have {ndim - stacked} axes, and {what} {ndim}")
    axis %= ndim
    _require_fit(frames, None if stacked else axis)
    if stacked:
        return JoinedReference([frame.stacked(axis) for frame in frames], axis)
    # frames without positions along the axis add nothing; if all are empty, keep one
    return JoinedReference([frame for frame in frames if frame.shape[axis]] or frames[:1], axis)


def _require_fit(frames: Sequence[FrameReference], along: int | None) -> None:
    """Raise ValueError for frames unlike most others; lengths along the axis `along` may differ."""

    def kind(frame: FrameReference) -> tuple[Any, ...]:
        shape = tuple(-1 if i == along else n for i, n in enumerate(frame.shape))
        return shape, frame.dtype

    # compare with the majority, since the first frame may be the wrong one
    usual = Counter(map(kind, frames)).most_common(1)[0][0]
    others = [frame for frame in frames if kind(frame) != usual]
    if not others:
        return
    example = next(frame for frame in frames if kind(frame) == usual)
    lines = [f"{frame.location.label}: {_difference(frame, example, along)}" for frame in others]
    where = "" if along is None else f" (any length along axis {along})"
    raise ValueError(
        f"{len(others)} of {len(frames)} frames do not fit the others, which have "
        f"shape {example.shape}{where} and dtype {example.dtype}, like {example.location.label}:"
        + _lines(lines)
    )


def _difference(frame: FrameReference, usual: FrameReference, along: int | None) -> str:
    found = []
    if frame.ndim != usual.ndim:
        found.append(f"{frame.ndim} axes, not {usual.ndim} (shape {frame.shape})")
    elif wrong := [i for i in range(frame.ndim) if i != along and frame.shape[i] != usual.shape[i]]:
        axes = ", ".join(f"{frame.shape[i]} along axis {i}, not {usual.shape[i]}" for i in wrong)
        found.append(f"shape {frame.shape}: {axes}")
    if frame.dtype != usual.dtype:
        found.append(f"dtype {frame.dtype}, not {usual.dtype}")
    return "; ".join(found)


def _pack(frames: Sequence[FrameReference]) -> bytes:
    """Pack references without their storage options, which may need cloudpickle."""
    known: dict[Any, Any] = {}
    rows = []
    for at, version, grid, fill, verify in (frame.fields for frame in frames):
        kind = at.offset, (at.member, at.embedded, at.nbytes), grid, fill, verify
        rows.append((at.urlpath, version, known.setdefault(kind, kind)))
    # the path of a frame in memory is its bytes, which are compressed already
    level = 0 if any(isinstance(path, bytes) for path, *_ in rows) else 1
    return zlib.compress(pickle.dumps(rows), level)


def _unpickled(packed: bytes, options: Any, axis: int, new_axis: int | None) -> JoinedReference:
    frames = []
    rows = pickle.loads(zlib.decompress(packed))  # noqa: S301 - part of a task's pickle
    for (path, version, kind), given in zip(rows, options, strict=True):
        offset, inside, grid, fill, verify = kind
        at = Location(path, offset, given, *inside)
        frames.append(FrameReference(at, version, grid, fill, verify, new_axis=new_axis))
    return JoinedReference(frames, axis)
