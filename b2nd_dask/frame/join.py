"""Open many frames concurrently, and join them if they fit."""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from b2nd_dask.errors import B2ndError
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.members.listing import members_matching
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import matches_of

#: Most concurrent requests to open frames; network file systems benefit, too.
THREADS = 16
#: Most frames that an error lists.
_LISTED = 10
#: Errors of one frame, reported together. Errors of credentials or arguments concern all frames.
_OF_ONE_FRAME = (FileNotFoundError, NotADirectoryError, B2ndError)


def sources_of(given: Any, storage_options: Mapping[str, Any] | None = None) -> list[Any] | None:
    """List the frames of a list or a pattern; None for the path of one frame.

    Raises `FileNotFoundError` if nothing matches the pattern, `ValueError` if the list is empty.
    """
    if isinstance(given, str | os.PathLike):
        in_stores = members_matching(given, storage_options)
        return matches_of(given, storage_options) if in_stores is None else in_stores or None
    if not isinstance(given, list | tuple):
        return None
    if not given:
        raise ValueError("an empty list; from_b2nd needs at least one frame")
    return list(given)


def open_all(
    sources: Sequence[Any], open_one: Callable[[Any], FrameReference]
) -> list[FrameReference]:
    """Open frames concurrently.

    Frames that are missing or unreadable are all named in one error. Any other error, such as an
    unavailable store, credentials or an argument, is raised at once and stops the opening.
    """
    frames, errors = [], []
    with ThreadPoolExecutor(min(THREADS, len(sources))) as pool:
        opened = [pool.submit(open_one, source) for source in sources]
        try:
            for each in opened:
                try:
                    frames.append(each.result())
                except _OF_ONE_FRAME as error:
                    errors.append(error)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if errors:
        raise _error_of(errors, len(sources)) from errors[0].__cause__
    return frames


def _error_of(errors: Sequence[Exception], nsources: int) -> Exception:
    """Combine errors; the type is that of the first, so callers catch it as for one frame."""
    first = errors[0]
    # one frame, perhaps named several times
    if len({str(error) for error in errors}) == 1:
        return first
    problem = f"{len(errors)} of {nsources} frames cannot be opened:" + _listed(map(str, errors))
    kind = type(first)
    if not isinstance(first, B2ndError):
        kind = next(each for each in _OF_ONE_FRAME if isinstance(first, each))
    return kind(problem)


def _listed(lines: Iterable[str]) -> str:
    """Format one line per frame, up to a limit."""
    lines = list(lines)
    more = [f"and {len(lines) - _LISTED} others"] if len(lines) > _LISTED else []
    return "".join(f"\n  {line}" for line in [*lines[:_LISTED], *more])


def join(frames: Sequence[FrameReference], axis: int, stacked: bool) -> JoinedReference:
    """Join frames along an axis, which may count from the end, if they fit.

    `stacked` says whether the axis is a new one. Raises `ValueError` if shapes or dtypes differ
    (each such frame is named), or the frames lack the axis, `TypeError` if the axis is not an
    integer.
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
    """Raise an error that names the frames unlike most others; lengths along `along` may differ."""

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
        + _listed(lines)
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
