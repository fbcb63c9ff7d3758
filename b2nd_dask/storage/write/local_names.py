"""Publish a finished frame on a local disk under its name; remove an old one.

Hidden names beside a target:

``.NAME.KEY.staging``
    Staging area of a write.
``.NAME.KEY.removed``
    Abandoned staging area during its removal.
``.NAME.KEY.old``
    Old frame or dataset during its replacement. Only if one of the two is a directory, and the file
    system cannot exchange names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage.byte_reader import CHUNK_MEMBER, MAIN_MEMBER
from b2nd_dask.storage.failures import MEANWHILE, why_missing
from b2nd_dask.system import RENAME_EXCHANGE, RENAME_NOREPLACE, opened, renameat2, sync

#: Lock file of a staging area: appends take a shared lock, the commit an exclusive one.
LOCK_NAME = "lock"
#: Most bytes of a target's name in hidden names, since names have at most 255 bytes.
_LONGEST_NAME = 150
_HIDDEN = re.compile(r"(?<![^/])\.([^/]+)\.([0-9a-f]{16})\.(?:staging|removed|old)(?=/|\Z)")
#: Errors of a rename if another writer has just replaced a file by a directory or the reverse, or
#: has removed it.
_REPLACED = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)
#: Errors of a removal if another writer has added an entry, or replaced a directory by a file or a
#: link; for a link, the error of `shutil.rmtree` has no number.
_CHANGED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, None)
#: Attempts of a rename over a target, and of a removal, while other writers change the directory.
_RENAMES, _REMOVALS = 5, 100
_LONGEST_PAUSE = 0.1


def area_of(target: Path, key: str) -> Path:
    """Path of a write's staging area."""
    return target.with_name(f"{_prefix(target.name)}{key}.staging")


def key_of(hidden: Path, target: Path) -> str | None:
    """Return the key in the hidden name of a write to this target; None for any other path."""
    named = _HIDDEN.fullmatch(hidden.name)
    return named[2] if named and f".{named[1]}." == _prefix(target.name) else None


def target_of(path: str) -> str:
    """Return the target of the hidden path that contains a path; else the path itself.

    A shortened name stays shortened (`_LONGEST_NAME`).
    """
    hidden = _HIDDEN.search(path)
    return path[: hidden.start()] + hidden[1] if hidden else path


@contextmanager
def about(target: str) -> Iterator[None]:
    """Name the target in errors of the system, in place of a hidden file.

    If the target lies in the staging area of another target, errors name the other one.
    """
    try:
        yield
    except OSError as error:
        target = target_of(target)
        if isinstance(error, B2ndError) or target in (error.filename, error.filename2):
            raise
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        reason = why_missing(target) if missing else ""
        problem = f"{error.strerror}{reason}, while writing"
        # OSError chooses the class by errno; classes of other packages have other constructors
        raise OSError(error.errno, problem, target) from error


def remove_area(hidden: Path, target: Path) -> None:
    """Remove what a write has left beside its target; tasks and commits that still use it fail.

    Any hidden path of the write will do; it need not exist. An old frame (``.old``) gets its name
    back, unless something else has this name.
    """
    old = hidden.with_suffix(".old")
    is_left = os.path.lexists(old)
    # renamed first: tasks and commits must not find the area while it is emptied, and a commit that
    # has just given the old frame its hidden name fails and restores it
    removed = _rename_removed(hidden.with_suffix(".staging"))
    if is_left:
        if not os.path.lexists(target):
            with suppress(FileNotFoundError):
                old.rename(target)
        remove_path(old)
    remove_path(removed)


def _rename_removed(hidden: Path) -> Path:
    """Rename a staging area to its name during removal, unless another process has."""
    dead = hidden.with_suffix(".removed")
    while True:
        remove_path(dead)
        try:
            hidden.rename(dead)
        except FileNotFoundError:
            return dead
        except OSError as error:
            # another process has just renamed an area of the same write
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return dead


def _prefix(name: str) -> str:
    """Return the prefix of a target's hidden names, unique to this target."""
    raw = os.fsencode(name)
    if len(raw) > _LONGEST_NAME:
        name = f"{name[:32]}~{hashlib.blake2b(raw, digest_size=8).hexdigest()}"
    return f".{name}."


def publish_path(ready: Path, target: Path, *, replace: bool, fsync: bool = True) -> None:
    """Give a finished file or directory, in a staging area beside the target, its name.

    If it replaces a target, readers see the old frame or the new one. But if one of them is a
    directory and the file system cannot exchange names, there is a moment without any. A replaced
    directory then has the name of `ready`, or the name of the staging area with the suffix
    ``.old``. The removal of the area removes it, too.

    With `fsync`, the name is on the disk at return; `ready` must be on the disk before the call.
    Raises FileExistsError if the target exists and may not be replaced.
    """
    if replace:
        _replace(ready, target)
    else:
        exists = FileExistsError(errno.EEXIST, MEANWHILE, str(target))
        try:
            is_renamed = renameat2(ready, target, RENAME_NOREPLACE)
        except FileExistsError:
            raise exists from None
        if not is_renamed:
            # not atomic, but there is no other way
            if target.exists():
                raise exists
            ready.rename(target)
    if fsync:
        sync(target.parent)


def keep_mode(ready: Path, target: Path) -> None:
    """Copy the permissions of the target, if both are files or both are directories."""
    try:
        # a single stat: another writer may replace it by a frame of the other form
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_IFMT(mode) == stat.S_IFMT(ready.stat().st_mode):
        ready.chmod(stat.S_IMODE(mode))


def require_frame(path: Path) -> None:
    """Check that a path is a frame or empty, and may be replaced."""
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(fd) as members:
                names = {member.name for member in members}
            # python-blosc2 adds .b2lock
            others = names - {MAIN_MEMBER, ".b2lock"}
            frame = not names or (MAIN_MEMBER in names and all(map(CHUNK_MEMBER.fullmatch, others)))
        elif frame := stat.S_ISREG(mode):
            # every frame starts with 0x9e, 0xa8 and the magic (docs/format.md, Frame header)
            head = os.read(fd, 10)
            frame = not head or head[2:] == b"b2frame\0"
    if not frame:
        raise FileExistsError(
            errno.EEXIST,
            "this is not a frame, or has other files in it, so it is not replaced; remove it "
            "yourself, or write to another path",
            str(path),
        )


def remove_path(path: Path) -> None:
    """Remove a file, or a directory with its contents, if it exists.

    At the same time other processes may remove it, or link files into it until they notice that it
    was replaced. Raises OSError, which names the path, if the removal fails.
    """
    for attempt in range(_REMOVALS):
        try:
            return _remove_once(path)
        except OSError as error:
            if error.errno not in _CHANGED or attempt == _REMOVALS - 1:
                raise type(error)(error.errno, error.strerror, str(path)) from error
            # a process that links files needs time to notice the removal, or to finish
            time.sleep(min(0.001 * 2**attempt, _LONGEST_PAUSE))
    return None


def _remove_once(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=lambda _, __, error: _unless_missing(error))
        else:
            shutil.rmtree(path, onerror=lambda _, __, info: _unless_missing(info[1]))


def _unless_missing(error: BaseException) -> None:
    """Ignore an entry that another process has removed."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _replace(ready: Path, target: Path) -> None:
    """Rename over a file or directory, or to a new name."""
    for attempt in range(_RENAMES):
        try:
            if target.is_dir() or (ready.is_dir() and target.exists()):
                _exchange(ready, target)
            else:
                ready.replace(target)
        except OSError as error:
            # another writer was faster; its target may need the other of the two calls
            if error.errno not in _REPLACED or attempt == _RENAMES - 1 or not ready.exists():
                raise
        else:
            return


def _exchange(ready: Path, target: Path) -> None:
    """Swap a directory with a frame of either form, which a plain rename cannot do."""
    if renameat2(ready, target, RENAME_EXCHANGE):
        return
    # beside the staging area, not in it: a removal of the area must not include the old frame
    aside = ready.parent.with_suffix(".old")
    # a killed run has left it; the target exists again
    remove_path(aside)
    try:
        target.rename(aside)
        ready.rename(target)
    except BaseException:
        # a rename that raised an error may have succeeded
        if not os.path.lexists(target):
            aside.rename(target)
        raise
