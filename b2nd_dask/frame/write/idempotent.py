"""Tasks of a write that may run twice: dask runs tasks again when a worker is lost."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.history import MARKS_NBYTES, parse_marks
from b2nd_dask.format.trailer import TAIL_LEN, Trailer, build_trailer, trailer_len_of
from b2nd_dask.frame.open.opening import read_header, steadily
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkRecords, put_manifest
from b2nd_dask.processes import unseen
from b2nd_dask.storage import ByteReader, Identity, Span, Staging

logger = logging.getLogger("b2nd_dask")

#: What a write meets that runs again after it published: its parts are gone, its target is there,
#: the frame that it changes is another one, records are missing. A failing disk is none of these.
RAN_BEFORE = (FileNotFoundError, FileExistsError, B2ndError)

_NOT_SHARED = (
    "all tasks of a write need its folder, and what others have staged there, under the same path "
    "(a shared file system, a mounted volume); otherwise write to a URL"
)


#: Keys of writes that failed in this process, whose other threads may still run tasks of them.
_given_up: set[str] = set()


class OpenedStaging(NamedTuple):
    """Where the tasks of a write stage their chunks."""

    staging: Staging
    was_published: bool
    """Whether this very write had published its frame before it was opened. Then dask has lost a
    worker and its tasks are to run again, of which perhaps none will; or a Delayed is computed
    twice. The staging area is made by the first task that needs it: nobody would remove it after
    the last."""
    begun_key: str | None = None
    """Of the frame that a part is staged of."""
    is_skipped: bool = False
    """Whether nothing is staged: an intermediate frame whose target was published before."""


def open_staging(plan: FramePlan, staging: Staging) -> OpenedStaging:
    """Make the staging area of a write, when its graph is computed.

    Raises
    ------
    FileExistsError
        The target is there, and was not made by this write.
    OSError
        Nothing can be written there.
    """
    was_published = is_published(plan, staging)
    if not was_published:
        _require_wanted(staging)
        with _shared(staging):
            staging.prepare()
        # also behind that: whichever comes first, no staging area stays
        _require_wanted(staging)
    return OpenedStaging(staging, was_published)


def _require_wanted(staging: Staging) -> None:
    if staging.key in _given_up:
        clean_up(staging)
        problem = "another task of this write failed"
        raise FileNotFoundError(errno.ENOENT, problem, staging.label)


def stage_once(
    stage: Callable[[], ChunkRecords], plan: FramePlan, opened: OpenedStaging
) -> ChunkRecords:
    """Stage chunks; nothing where the frame was published while the task ran again.

    Where the write can be resumed, a manifest says what is staged.
    """
    if opened.is_skipped:
        return ChunkRecords.of(plan.row, {}, {})
    try:
        return _with_manifest(stage(), opened.staging)
    except FileNotFoundError as error:
        if opened.begun_key is not None:
            require_uncommitted(opened.staging, opened.begun_key)
        if not is_published(plan, opened.staging):
            raise unseen(error, opened.staging.label, _NOT_SHARED) from error
    if not opened.was_published:
        return ChunkRecords.of(plan.row, {}, {})
    opened.staging.make_area()
    return stage()


def _with_manifest(records: ChunkRecords, staging: Staging) -> ChunkRecords:
    if staging.resumable:
        # a power cut may lose it: then its chunks are computed again
        put_manifest(records, staging, fsync=False)
    return records


def finish_once(
    finish: Callable[[ChunkRecords, FramePlan, Staging], str],
    records: ChunkRecords,
    plan: FramePlan,
    opened: OpenedStaging,
    *before: Any,
) -> str:
    """Make the staged chunks the frame.

    Parameters
    ----------
    finish : callable
        `commit_frame`, or what does its work for an update.
    before
        Results of what must have succeeded before.

    Returns
    -------
    str
        Path or URL of the frame; empty where nothing is staged.
    """
    if opened.is_skipped:
        return ""
    if opened.was_published:
        # blocks that are all constant have staged nothing
        opened.staging.make_area()
    with _shared(opened.staging, opened.begun_key):
        return finish(records, plan, opened.staging)


@contextmanager
def _shared(staging: Staging, begun_key: str | None = None) -> Iterator[None]:
    """Let errors of a folder that is not there say in which process it is not."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if begun_key is not None:
            require_uncommitted(staging, begun_key)
        raise unseen(error, staging.label, _NOT_SHARED) from error


def is_published(plan: FramePlan, staging: Staging) -> bool:
    """Whether this very write made the frame that is there, or is one of its last updates.

    Returns
    -------
    bool
        False too where no frame is there.
    """
    if plan.grid.nchunks:
        return has_published(staging, staging.key)
    return _of_target(staging, lambda reader: _is_empty_frame(reader, plan))


def has_published(staging: Staging, key: str) -> bool:
    """Whether the write of a key made the frame at the target, or is one of its last updates."""
    return _of_target(staging, lambda reader: key in keys_of(reader))


def require_uncommitted(staging: Staging, key: str) -> None:
    """Raise FileNotFoundError where the frame that was begun by a key is committed."""
    if has_published(staging, key):
        raise FileNotFoundError(
            errno.ENOENT,
            "the frame was committed meanwhile, without what was staged now: write that by "
            'to_b2nd(..., mode="r+", region=...)',
            staging.label,
        )


def _of_target(staging: Staging, says: Callable[[ByteReader], bool]) -> bool:
    """What is true of the frame at the target; False where none is there, or another file."""
    try:
        reader = staging.reader()
        try:
            return says(reader)
        finally:
            reader.close()
    except (OSError, B2ndError):
        return False


def clean_up(staging: Staging) -> None:
    """Remove what was staged; where that fails, say so and go on: the target is what it is."""
    try:
        staging.discard()
    except Exception as error:  # noqa: BLE001 - every store has a tree of errors of its own
        logger.warning(
            "%s: what was staged under the key %s could not be removed (%s); "
            "`remove_staging` removes it",
            staging.label,
            staging.key,
            error,
        )


def give_up(staging: Staging) -> None:
    """Remove what a write of this process has staged that failed, for good."""
    _given_up.add(staging.key)
    clean_up(staging)


def write_key_of(reader: ByteReader) -> str | None:
    """The key of the last write that made or changed a frame; arguments as for `keys_of`.

    None where other software made it, or changed it since.
    """
    return next(iter(keys_of(reader)), None)


def keys_of(reader: ByteReader) -> tuple[str, ...]:
    """The keys of the writes that made and changed a frame, as far as it knows them.

    Returns
    -------
    tuple of str
        The last one first. Empty where other software made the frame, or changed it since.

    Raises
    ------
    OSError
        It cannot be read.
    FrameFormatError
        It is no frame.
    """
    return steadily(reader, lambda identity: _keys_of(reader, identity))


def _keys_of(reader: ByteReader, identity: Identity) -> tuple[str, ...]:
    _, header = read_header(reader, identity.size)
    end = header.frame_len
    (tail,) = reader.read([Span(end - TAIL_LEN, end)])
    start = end - trailer_len_of(tail, end - header.header_len)
    first = max(start - MARKS_NBYTES, header.index_start)
    if first >= start:
        return ()
    (marks,) = reader.read([Span(first, start)])
    key, history = parse_marks(marks, None)
    if key is None:
        return ()
    return tuple(update.key for update in reversed(history.updates)) or (key,)


def _is_empty_frame(reader: ByteReader, plan: FramePlan) -> bool:
    """Compare a frame without chunks, which has no write id, by all that it holds: its metadata."""
    trailer = build_trailer(Trailer(plan.vlmeta, b""))
    frame_len = len(plan.header()) + len(trailer)
    whole = plan.header(frame_len=frame_len, has_vlmeta=bool(plan.vlmeta)) + trailer
    return reader.read([Span(0, len(whole) + 1)]) == [whole]
