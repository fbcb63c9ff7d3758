"""Choose the staging of a write to a location; list and remove staging areas."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from b2nd_dask.storage.byte_reader import MAIN_MEMBER
from b2nd_dask.storage.read.location import Location
from b2nd_dask.storage.redaction import printable
from b2nd_dask.storage.write.local_names import key_of, remove_area, target_of
from b2nd_dask.storage.write.local_staging import ContiguousStaging, SparseStaging
from b2nd_dask.storage.write.local_update import (
    ContiguousUpdate,
    FrameState,
    LocalUpdate,
    SparseUpdate,
)
from b2nd_dask.storage.write.object_staging import ObjectStaging, SparseObjectStaging
from b2nd_dask.storage.write.object_store import ObjectStore
from b2nd_dask.storage.write.staging import Staging
from b2nd_dask.system import require_writable

logger = logging.getLogger("b2nd_dask")

_LONG_AGO = datetime.fromtimestamp(0, UTC)
#: Most names of a folder that a write searches for staging areas of other writes.
_MOST_NAMES = 1000


def staging_for(
    location: Location,
    *,
    sparse: bool,
    header_len: int,
    replace: bool = False,
    resume_key: str | None = None,
    fsync: bool = True,
) -> Staging:
    """Choose the staging that writes a new frame to a local path or a URL.

    A sparse frame is a directory of chunk files; `header_len` is the length of the frame's header.
    `resume_key`, 16 hexadecimal digits, is the same for every run of one write: each run reuses the
    bytes that earlier runs have staged. By default the write gets a new key. With `fsync`,
    publishing at a local path waits until the frame is on the disk. Object stores confirm each
    object themselves.

    Raises OSError for a local path on Windows, ValueError if the location is bytes, has an offset
    inside a file, or is the URL of a directory for a contiguous frame.
    """
    if _is_inside(location):
        raise ValueError(
            f"{location.label}: a frame cannot be written into bytes, or at an offset in a file; "
            "pass the path or URL of a new file"
        )
    key = _key(resume_key)
    if location.is_url:
        if not sparse and str(location.urlpath).endswith("/"):
            raise ValueError(
                f"{location.label}: a URL that ends with / is that of a sparse frame; pass "
                "contiguous=False, or omit the /"
            )
        form = SparseObjectStaging if sparse else ObjectStaging
        return form(*key, replace, location)
    local = SparseStaging if sparse else ContiguousStaging
    return local(*key, replace, _local_target(location), header_len, fsync=fsync)


def update_staging_for(
    location: Location, old: FrameState, *, resume_key: str | None = None, fsync: bool = True
) -> LocalUpdate:
    """Choose the staging that changes a frame at a local path in place, from the state `old`.

    For `resume_key` see `staging_for`. Publishing waits until new chunks and index are on the disk,
    with `fsync` also until the switch to them is.

    Raises OSError on Windows, ValueError if the frame is in an object store, in bytes or in a
    container, where frames cannot be changed.
    """
    if _is_inside(location) or location.is_url:
        raise ValueError(
            f"{location.label}: only frames in local files can be changed; write a new frame, in "
            "parts if many jobs write it (create)"
        )
    form = SparseUpdate if old.sparse else ContiguousUpdate
    return form(*_key(resume_key), True, _local_target(location), old.header_len, old, fsync=fsync)


def _is_inside(location: Location) -> bool:
    return isinstance(location.urlpath, bytes) or bool(location.offset)


def _key(resume_key: str | None) -> tuple[str, bool]:
    """Choose the key of a write; also return whether the write can be resumed."""
    return resume_key or uuid.uuid4().hex[:16], resume_key is not None


def _local_target(location: Location) -> Location:
    require_writable(location.label)
    return Location(os.path.realpath(location.url))


@dataclass(frozen=True, slots=True)
class StagingInfo:
    """A staging area: the staged bytes of one write."""

    path: str
    """Path or URL of the staging area."""
    key: str
    """Distinguishes the writes to one target."""
    nbytes: int
    """Number of staged bytes."""
    modified: datetime | None
    """Time of the last change in the area; None if the store reports no times."""


def list_staging(urlpath: Any, *, storage_options: Any = None) -> list[StagingInfo]:
    """List the staging areas of a frame or folder: bytes that are staged and not published.

    A staging area belongs to a write in progress, to a killed write, to a failed write with
    ``resume=True`` or ``compute=False``, or to an unfinished frame of `create` with its parts. A
    path that ends in ``.old`` is a sparse frame or dataset during its replacement, on a file system
    that cannot exchange directories.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or URL of the frame, which need not exist; or path of a folder or dataset of frames.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.

    Returns
    -------
    list of StagingInfo
        Oldest first.

    Raises
    ------
    FileNotFoundError
        There is no such bucket.

    Examples
    --------
    >>> list_staging("nothing-was-written-here.b2nd")
    []
    """
    location = Location.of(urlpath, storage_options=storage_options)
    found = _remote_areas(location) if location.is_url else _local_areas(location)
    return sorted(found, key=lambda info: (info.modified or _LONG_AGO, info.key))


def remove_staging(
    urlpath: Any, *, key: str | None = None, storage_options: Any = None
) -> list[StagingInfo]:
    """Remove the staging areas that `list_staging` lists. A write in progress there fails.

    An old frame or dataset (``.old``) gets its name back, unless something else has this name.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path or URL of the frame, which does not change.
    key : str, optional
        Key of one staging area; by default all areas of the frame are removed.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.

    Returns
    -------
    list of StagingInfo
        The removed areas.

    Raises
    ------
    FileNotFoundError
        No staging area of the frame has the key, or the bucket does not exist. Without a key,
        it is no error if there are no areas.
    OSError
        An area cannot be removed.
    """
    location = Location.of(urlpath, storage_options=storage_options)
    listed = list_staging(urlpath, storage_options=storage_options)
    removed = [info for info in listed if key in (None, info.key)]
    if key is not None and not removed:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no staging area has the key {key!r}; list_staging lists those that exist",
            location.label,
        )
    for info in removed:
        if location.is_url:
            # for both forms of frames: it also removes chunks of an unfinished sparse frame
            SparseObjectStaging(info.key, False, False, location).discard()
        else:
            area, path = Path(info.path), Path(os.path.realpath(location.url))
            is_beside = area.parent == path.parent
            remove_area(area, path if is_beside else Path(target_of(info.path)))
    return removed


def log_other_staging(location: Location, own_key: str) -> None:
    """Log a warning if other writes to a local path have staging areas, unless its folder is large.

    Nothing shows whether they are in progress or were killed.
    """
    path, keys = Path(os.path.realpath(location.url)), []
    # a missing folder is an error later
    with suppress(OSError), os.scandir(path.parent) as found:
        hidden = [each.name for each in islice(found, _MOST_NAMES) if each.name[0] == "."]
        keys = [key for name in hidden if (key := key_of(Path(name), path)) not in (None, own_key)]
    if keys:
        logger.warning(
            "%s: staging areas of other writes of this path, killed or still running: %s; "
            "`b2nd-dask staging PATH` (list_staging) lists them, and if nobody writes there, "
            "--remove (remove_staging) removes them",
            printable(location.label),
            ", ".join(map(str, keys)),
        )


def _local_areas(location: Location) -> Iterator[StagingInfo]:
    """List the areas beside a path, and in it if it is a folder of frames."""
    path = Path(os.path.realpath(location.url))
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    areas = [(area, path) for area in beside]
    is_folder = path.is_dir() and not (path / MAIN_MEMBER).exists()
    for folder, inner, files in os.walk(path) if is_folder else ():
        # an old frame may be a file
        hidden = [Path(folder, name) for name in (*inner, *files) if name.startswith(".")]
        areas += [(area, Path(target_of(str(area)))) for area in hidden]
        inner[:] = [name for name in inner if not name.startswith(".")]
    for area, target in areas:
        key = key_of(area, target)
        info = None if key is None else _info(area, key)
        if info is not None:
            yield info


def _info(area: Path, key: str) -> StagingInfo | None:
    # a write in progress may remove the area, and files in it
    try:
        newest, nbytes = area.lstat().st_mtime, 0
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):
        for path in area.rglob("*"):
            state = path.lstat()
            newest = max(newest, state.st_mtime)
            nbytes += state.st_size if stat.S_ISREG(state.st_mode) else 0
    return StagingInfo(str(area), key, nbytes, datetime.fromtimestamp(newest, UTC))


def _remote_areas(location: Location) -> Iterator[StagingInfo]:
    store = ObjectStore.of(location)
    parent, _, name = store.target.rpartition("/")
    of_target = re.compile(re.escape(name) + r"(\.([0-9a-f]{16})\.staging)")
    for area in store.folders(parent):
        if match := of_target.fullmatch(area.rpartition("/")[2]):
            found = store.entries(area).values()
            nbytes = sum(entry.get("size") or 0 for entry in found)
            times = [entry["LastModified"] for entry in found if "LastModified" in entry]
            yield StagingInfo(location.label + match[1], match[2], nbytes, max(times, default=None))
