"""Open many frames at once, and put them together if they fit."""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import matches_of

#: Requests to open frames that wait at the same time; disks of the network are stores, too.
THREADS = 16
#: Frames that an error lists, at most.
_LISTED = 100


def sources_of(given: Any, storage_options: Mapping[str, Any] | None = None) -> list[Any] | None:
    """List the frames that a list or a pattern names; None where one frame is meant.

    Raises
    ------
    FileNotFoundError
        Nothing matches the pattern.
    ValueError
        An empty list.
    """
    if isinstance(given, str | os.PathLike):
        return matches_of(given, storage_options)
    if not isinstance(given, list | tuple):
        return None
    if not given:
        raise ValueError("an empty list; from_b2nd needs one frame at least")
    return list(given)


def open_all(
    sources: Sequence[Any], open_one: Callable[[Any], FrameReference]
) -> list[FrameReference]:
    """Open frames concurrently; raise the first error, after which no more are opened."""
    with ThreadPoolExecutor(min(THREADS, len(sources))) as pool:
        opened = [pool.submit(open_one, source) for source in sources]
        try:
            return [each.result() for each in opened]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def join(frames: Sequence[FrameReference], axis: int, stacked: bool) -> JoinedReference:
    """Put frames together, if they fit.

    Parameters
    ----------
    axis : int
        Along which they follow each other; may count from the end.
    stacked : bool
        Whether the axis is a new one.

    Raises
    ------
    ValueError
        Frames of other shapes or dtypes, each named, or an axis that the frames do not have.
    TypeError
        An axis that is no number.
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
    if not stacked:
        # a frame without elements adds nothing; of an axis without positions one is kept
        frames = [frame for frame in frames if frame.shape[axis]] or frames[:1]
    return JoinedReference(frames, axis, stacked)


def _require_fit(frames: Sequence[FrameReference], along: int | None) -> None:
    """Raise an error that names the frames that differ from most; `along` may differ."""

    def kind(frame: FrameReference) -> tuple[Any, ...]:
        shape = tuple(-1 if i == along else n for i, n in enumerate(frame.shape))
        return shape, frame.dtype

    # most of them, since the first may be the one that is wrong
    usual = Counter(map(kind, frames)).most_common(1)[0][0]
    others = [frame for frame in frames if kind(frame) != usual]
    if not others:
        return
    example = next(frame for frame in frames if kind(frame) == usual)
    lines = [f"{frame.location.label}: {_difference(frame, example, along)}" for frame in others]
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    where = "" if along is None else f" (along axis {along} any length)"
    raise ValueError(
        f"{len(others)} of {len(frames)} frames do not fit the others, which have "
        f"shape {example.shape}{where} and dtype {example.dtype}, as {example.location.label}:\n  "
        + "\n  ".join([*lines[:_LISTED], *more])
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
