"""What is staged of a pending frame: the manifests of its parts, which are boxes of whole chunks.

Boxes that are missing or overlap, and manifests and bytes that are not as they were staged, are
errors that name the regions of the frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.write.casts import cast_value
from b2nd_dask.frame.write.conflicts import ChunkBox
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import (
    MANIFEST,
    ChunkRecords,
    are_as_staged,
    merge_records,
    read_manifests,
)
from b2nd_dask.frame.write.writer import constant_records, write_block
from b2nd_dask.storage import Staging

#: Missing or overlapping regions that an error lists.
_LISTED = 5


def names_by_box(staging: Staging, grid: Grid) -> dict[ChunkBox, str]:
    """The names of the manifests of all parts that are staged, by their boxes."""
    named = filter(None, map(MANIFEST.fullmatch, staging.names()))
    ends = sorted((int(match[1], 16), int(match[2], 16), match[0]) for match in named)
    possible = (row for row in ends if row[0] <= row[1] < grid.nchunks)
    boxes = ((ChunkBox.between(first, last, grid), name) for first, last, name in possible)
    return {box: name for box, name in boxes if not box.is_empty}


def manifests_of(staging: Staging, grid: Grid) -> dict[ChunkBox, bytes]:
    """The manifests of all parts."""
    names = names_by_box(staging, grid)
    return dict(zip(names, read_manifests(list(names.values()), staging.get), strict=True))


def records_of_parts(
    manifests: dict[ChunkBox, bytes], plan: FramePlan, staging: Staging, fill: Any
) -> ChunkRecords:
    """Put the parts together; with a record of each chunk, or an error that says what is wrong."""
    parts = [_read_part(*part, plan, staging.label) for part in manifests.items()]
    records = merge_records([ChunkRecords.of(plan.row, {}, {}), *parts])
    staged = np.zeros(plan.grid.nchunks, bool)
    staged[records.rows["chunk"]] = True
    # only then is it worth comparing each two
    if np.count_nonzero(staged) < len(records.rows):
        require_apart(itertools.combinations(manifests, 2), plan.grid, staging.label)
    if fill is None and not staged.all():
        regions = _regions_of(~staged, plan.grid)
        raise B2ndError(
            f"{np.count_nonzero(~staged)} of {len(staged)} chunks were not staged: no part has "
            f"the elements {regions}. Stage them, or pass fill=",
            path=staging.label,
        )
    _require_as_staged(records, list(manifests), plan.grid, staging)
    if staged.all():
        return records
    return merge_records([records, _filled(fill, np.flatnonzero(~staged), plan, staging)])


def _read_part(box: ChunkBox, manifest: bytes, plan: FramePlan, label: str) -> ChunkRecords:
    records, chunks = ChunkRecords.from_bytes(manifest, plan.row), box.chunks(plan.grid)
    if records is None or not np.array_equal(np.sort(records.rows["chunk"]), chunks):
        problem = f"the manifest of the part {box.region(plan.grid)} is damaged: stage it again"
        raise B2ndError(problem, path=label)
    return records


def _require_as_staged(
    records: ChunkRecords, boxes: list[ChunkBox], grid: Grid, staging: Staging
) -> None:
    """Read what was staged, before it takes the place of a frame; an error names what differs."""
    damaged = records.rows["chunk"][~are_as_staged(records, staging)]
    if len(damaged):
        hit = [box for box in boxes if np.isin(box.chunks(grid), damaged).any()]
        regions = ", ".join(box.region(grid) for box in hit[:_LISTED])
        raise B2ndError(
            f"what was staged of {len(damaged)} chunks is damaged or gone: stage the parts "
            f"{regions}{' and others' if len(hit) > _LISTED else ''} again, then commit",
            path=staging.label,
        )


def _filled(
    fill: Any, chunks: NDArray[np.int64], plan: FramePlan, staging: Staging
) -> ChunkRecords:
    """Record chunks that repeat one element, and stage those for which the index has no code."""
    grid = plan.grid
    element = _element(fill, plan.dtype)
    constant = constant_records(element, (0,) * grid.ndim, grid.shape, plan)
    known = ChunkRecords.of(plan.row, {}, {}) if constant is None else constant
    known = ChunkRecords((), known.rows[np.isin(known.rows["chunk"], chunks)])
    tables = [known]
    for chunk in np.setdiff1d(chunks, known.rows["chunk"]).tolist():
        axes = grid.extent(chunk)
        elements = np.broadcast_to(element, tuple(map(len, axes)))
        tables.append(write_block(elements, tuple(axis.start for axis in axes), plan, staging))
    return merge_records(tables)


def _dtype_of_text(fill: str, dtype: np.dtype[Any]) -> np.dtype[Any] | str | None:
    """Choose how a text is read: a date in the unit that it is written in."""
    if dtype.kind == "M" and fill.strip().lower() not in ("nat", ""):
        return "M8"
    # durations as texts, and NaT, say no unit
    return dtype if dtype.kind in "mM" else None


def _element(fill: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast a scalar to a dtype, 0-d; an error where that would change more than its precision."""
    is_time = dtype.kind in "mM"
    given = np.array(fill, _dtype_of_text(fill, dtype) if isinstance(fill, str) else None)
    element = cast_value(given, dtype, f"fill={fill!r}").reshape(())
    problem = f"fill={fill!r} does not fit elements of {dtype}"
    if element.dtype != dtype:
        both_whole = given.dtype.kind in "iub" and dtype.kind in "iub"
        raise (OverflowError if both_whole else TypeError)(problem)
    if is_time and not np.array_equal(element, given.reshape(()), equal_nan=True):
        raise OverflowError(problem)
    return element


def require_apart(pairs: Iterable[tuple[ChunkBox, ChunkBox]], grid: Grid, label: str) -> None:
    """Check that the parts of each pair do not overlap."""
    found = [(a, b) for a, b in pairs if not a.common(b).is_empty]
    if found:
        named = ", ".join(f"{a.region(grid)} and {b.region(grid)}" for a, b in found[:_LISTED])
        raise B2ndError(
            f"parts overlap: {named}. Parts are disjoint; the same part may be staged again, and "
            "remove_staging removes all of them",
            path=label,
        )


def _regions_of(missing: NDArray[np.bool_], grid: Grid) -> str:
    """Name the regions of chunks, as boxes; the first ones where there are many."""
    left = missing.reshape(grid.counts).copy()
    said: list[str] = []
    while left.any() and len(said) < _LISTED:
        box = _largest_from_first(left)
        left[tuple(map(slice, box.start, box.stop))] = False
        said.append(box.region(grid))
    return ", ".join(said) + (" and others" if left.any() else "")


def _largest_from_first(mask: NDArray[np.bool_]) -> ChunkBox:
    """A box of true entries that begins at the first of them."""
    start = tuple(int(at) for at in np.unravel_index(int(np.argmax(mask)), mask.shape))
    stop = [at + 1 for at in start]
    # along the last axis first, whose chunks follow each other
    for axis in reversed(range(mask.ndim)):
        while stop[axis] < mask.shape[axis]:
            beside = [slice(a, b) for a, b in zip(start, stop, strict=True)]
            beside[axis] = slice(stop[axis], stop[axis] + 1)
            if not mask[tuple(beside)].all():
                break
            stop[axis] += 1
    return ChunkBox(start, tuple(stop))
