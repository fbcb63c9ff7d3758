"""A pending frame, whose plan lies in its staging area, and its parts: committed all at once.

A part is a box of whole chunks. The write that has staged all of them leaves its manifest in the
staging area, named after the box: a part that is staged again replaces its manifest. Boxes that are
missing or overlap, and manifests and bytes that are not as they were staged, are errors that name
the regions of the frame.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, FrameFormatError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import geometry_of, header_len_of, parse_header
from b2nd_dask.format.trailer import parse_trailer
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.files import require_no_link_out
from b2nd_dask.frame.write.conflicts import ChunkBox
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import (
    MANIFEST,
    ChunkRecords,
    are_as_staged,
    body_of,
    merge_records,
    put_manifest,
    read_manifests,
    require_all,
    with_digest,
)
from b2nd_dask.frame.write.transaction import Transaction, clean_up, has_published
from b2nd_dask.frame.write.writer import cast_value, constant_records, write_block
from b2nd_dask.storage import Location, Staging, staging_for

#: Of the staging area of all frames that are begun: any process finds it without a search.
AREA_KEY = b"in parts".hex()
PLAN_NAME = "plan"
_MAGIC = b"b2ndplan"
#: Magic, key, a byte of flags, and the frame without chunks; a digest of all stands behind it.
_KEY = slice(len(_MAGIC), len(_MAGIC) + 8)
_REPLACE, _STATS = 1, 2
#: Missing or overlapping regions that an error lists.
_LISTED = 5


@dataclass(frozen=True, eq=False)
class PendingFrame(Transaction):
    """A frame that appears when its parts are committed."""

    frame_key: str
    """For its write id: 16 hexadecimal digits."""

    @classmethod
    def at(cls, location: Location, plan: FramePlan, *, replace: bool, key: str) -> Self:
        """Reach the staging area of a frame; a commit of it that was killed is gone on with."""
        return cls(plan, plan.staging(location, replace=replace, resume_key=AREA_KEY), key)

    @property
    def write_key(self) -> str:
        """See `Transaction.write_key`."""
        return self.frame_key

    def to_bytes(self) -> bytes:
        """Write the plan as the header and trailer of the frame, without an index."""
        flags = _REPLACE * self.staging.replace | _STATS * self.plan.stats
        front = _MAGIC + bytes.fromhex(self.frame_key) + bytes([flags])
        return front + self.plan.empty_frame()

    def begin(self) -> Self:
        """Make the staging area, or find that the same frame was begun already.

        Raises
        ------
        FileExistsError
            The target is there and may not be replaced, or another frame was begun there.
        """
        # a commit goes on with what is there, a new beginning does not
        staging, plan = replace(self.staging, resumable=False), self.to_bytes()
        if PLAN_NAME not in staging.names():
            # not prepared: any process may remove the area
            staging.check_target()
            staging.make_area()
            # another job may begin it in this moment
            if staging.put_new(PLAN_NAME, with_digest(plan)):
                return self
        # whatever its key is
        if _plan_in(staging)[_KEY.stop :] != plan[_KEY.stop :]:
            raise FileExistsError(
                errno.EEXIST,
                "another frame was begun here, with other options: commit it, or remove it by "
                f"remove_staging(..., key={AREA_KEY!r})",
                staging.label,
            )
        return self

    def join(self, fill: Any) -> None:
        """Make the frame of the parts that are staged, unless another commit has."""
        # killed behind the switch to the new frame, before its staging area was removed
        if self.is_published():
            return
        # not under the lock, which tasks share that stage something
        manifests = manifests_of(self.staging, self.plan.grid)
        records = records_of_parts(manifests, self.plan, self.staging, fill)
        with self.staging.exclusive():
            if self.is_published():
                return
            if manifests != manifests_of(self.staging, self.plan.grid):
                raise B2ndError(
                    "parts were staged while they were committed: commit when all jobs have ended",
                    path=self.staging.label,
                )
            self.publish(records)


def pending_at(location: Location) -> PendingFrame:
    """Find the frame that was begun at a location.

    Raises
    ------
    FileNotFoundError
        None was, or it is committed.
    """
    # of either form: the plan says which
    area = staging_for(location, sparse=True, replace=False, header_len=0, resume_key=AREA_KEY)
    body = _plan_in(area)
    flags, frame = body[_KEY.stop], body[_KEY.stop + 1 :]
    try:
        header = parse_header(frame, len(frame))
        grid, dtype = geometry_of(header)
        vlmeta = parse_trailer(frame[header_len_of(frame) :])
    except FrameFormatError as error:
        raise error.located(path=area.label) from None
    dtype = dtype or np.dtype(f"V{grid.itemsize}")
    plan = FramePlan.of_header(header, grid, dtype, vlmeta, stats=bool(flags & _STATS))
    return PendingFrame.at(location, plan, replace=bool(flags & _REPLACE), key=body[_KEY].hex())


def _plan_in(staging: Staging) -> bytes:
    """Read the plan in a staging area, without the digest behind it."""
    try:
        body = body_of(staging.get(PLAN_NAME), _MAGIC)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            "no frame is begun here, or it is committed: b2nd_dask.create begins one",
            staging.label,
        ) from error
    if body is None or len(body) <= _KEY.stop:
        raise FrameFormatError(
            "the plan of the frame that was begun here is damaged: remove_staging removes it",
            path=staging.label,
        )
    return body


@dataclass(frozen=True, eq=False)
class Part(Transaction):
    """A part of a pending frame, which appears when that is committed."""

    box: ChunkBox
    frame_key: str
    """Of the frame."""

    def begin(self) -> Self:
        """Find the staging area of the frame; see `Transaction.begin`."""
        self._require_pending()
        return self

    def commit(self, records: ChunkRecords) -> str:
        """Enter the part, whose chunks are all staged; see `Transaction.commit`.

        Raises
        ------
        B2ndError
            Chunks are missing, or another part has some of the same chunks.
        FileNotFoundError
            The frame was committed or given up meanwhile.
        """
        staging, grid = self.staging, self.plan.grid
        wanted = self.box.chunks(grid)
        with self.reached():
            require_all(records, wanted, staging.label, outcome="the part is not staged")
            staging.sync(records.parts)
            with staging.exclusive():
                self._require_pending()
                if len(wanted):
                    others = [other for other in names_by_box(staging, grid) if other != self.box]
                    require_apart(((self.box, other) for other in others), grid, staging.label)
                    put_manifest(records, staging, fsync=True)
        return staging.label

    def unreached(self, error: OSError) -> OSError:
        """See `Transaction.unreached`."""
        return self._if_committed() or super().unreached(error)

    def _if_committed(self) -> OSError | None:
        """The error where the frame is committed."""
        if not has_published(self.staging, self.frame_key):
            return None
        return FileNotFoundError(
            errno.ENOENT,
            "the frame was committed meanwhile, without what was staged now: write that by "
            'to_b2nd(..., mode="r+", region=...)',
            self.staging.label,
        )

    def _require_pending(self) -> None:
        """Check that the frame is not committed yet, nor given up."""
        if committed := self._if_committed():
            raise committed
        if _plan_in(self.staging)[_KEY].hex() != self.frame_key:
            raise FileNotFoundError(
                errno.ENOENT, "the frame was given up meanwhile, and begun anew", self.staging.label
            )


def commit(urlpath: Any, *, fill: Any = None, storage_options: Any = None) -> Frame:
    """Make the parts that were staged of a frame the frame, all at once.

    The last step of three, which may run in as many processes, on as many machines and at any
    time: `create` begins a frame, ``to_b2nd(x, urlpath, mode="stage", region=...)`` stages parts of
    it, from the jobs of an array for instance, and `commit` joins them. Until then nothing is
    there under the frame's name, or the old frame is. Call it when all jobs have ended. It reads
    what was staged once, to see that it is as the jobs wrote it.

    Parameters
    ----------
    urlpath : str or os.PathLike
        As for `create`.
    fill : scalar, optional
        What the elements of missing parts hold. By default it is an error that parts are missing.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.

    Returns
    -------
    Frame

    Raises
    ------
    FileNotFoundError
        No frame was begun there, or it is committed already.
    TypeError, OverflowError
        The dtype cannot hold the `fill`.
    B2ndError
        Parts are missing and there is no `fill`, parts overlap, or what a job staged is damaged.
    FileExistsError
        A frame has appeared there that `create` was not told to replace.
    OSError
        The store failed; what was staged stays, and the same call goes on.

    Examples
    --------
    >>> import pathlib, tempfile, b2nd_dask, numpy as np
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> b2nd_dask.create(path, (4, 6), "i2", chunks=(2, 6))
    >>> for job in range(2):
    ...     rows = slice(2 * job, 2 * job + 2)
    ...     _ = b2nd_dask.to_b2nd(np.full((2, 6), job, "i2"), path, mode="stage", region=rows)
    >>> commit(path)[:, 0]
    array([0, 0, 1, 1], dtype=int16)
    """
    location = Location.of(urlpath, storage_options=storage_options)
    require_no_link_out(location)
    pending = pending_at(location)
    # another commit of the same frame may be faster, and remove what was staged
    with pending.once():
        pending.join(fill)
    # not under the lock: NFS keeps a file that is open, and with it the directory
    clean_up(pending.staging)
    return open_b2nd(urlpath, storage_options=storage_options)


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
    staged = np.zeros(plan.grid.nchunks, bool)
    for box in manifests:
        staged[box.chunks(plan.grid)] = True
    # only then is it worth comparing each two
    if np.count_nonzero(staged) < sum(box.nchunks for box in manifests):
        require_apart(itertools.combinations(manifests, 2), plan.grid, staging.label)
    parts = [_read_part(*part, plan, staging.label) for part in manifests.items()]
    records = merge_records([ChunkRecords.of(plan.row, {}, {}), *parts])
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
