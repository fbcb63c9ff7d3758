"""Make a finished file or directory visible under its name, all at once."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

#: From linux/fs.h and linux/fcntl.h; Python has no renameat2.
_RENAME_NOREPLACE, _RENAME_EXCHANGE, _AT_FDCWD = 1, 2, -100
#: What a kernel or file system without renameat2, or without the flag, answers.
_NOT_THERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def publish_path(ready: Path, target: Path, *, replace: bool) -> None:
    """Give a finished file or directory its name; durable when this returns.

    A directory that was replaced is then where `ready` was, or beside it under the name of the
    staging area that ends in ``.old``: to be removed by who removes that area.

    Parameters
    ----------
    ready : Path
        Finished and synced, in a staging area beside `target`.
    target : Path
    replace : bool
        Whether something that is there may be replaced. A reader then sees the old one or the new
        one; only where a directory is involved and the file system cannot exchange names is there a
        moment without any.

    Raises
    ------
    FileExistsError
        Something is there and `replace` is false.
    """
    if not replace:
        _rename_new(ready, target)
    elif target.is_dir() or (ready.is_dir() and target.exists()):
        _exchange(ready, target)
    else:
        ready.replace(target)
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_path(path: Path) -> None:
    """Remove a file or a directory with all in it, if it is there."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _rename_new(ready: Path, target: Path) -> None:
    if _renameat2(ready, target, _RENAME_NOREPLACE):
        return
    # not atomic, but all that is left
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    ready.rename(target)


def _exchange(ready: Path, target: Path) -> None:
    """Replace a directory, which rename alone cannot do."""
    if _renameat2(ready, target, _RENAME_EXCHANGE):
        return
    # beside the staging area, not in it: who clears that must not take the old frame along
    aside = ready.parent.with_suffix(".old")
    # of a run that was killed, whose frame something else has replaced since
    remove_path(aside)
    try:
        target.rename(aside)
        ready.rename(target)
    except BaseException:
        # each may have happened though it raised an error
        if not os.path.lexists(target):
            aside.rename(target)
        raise


def _renameat2(old: Path, new: Path, flags: int) -> bool:
    """Rename with flags; False where this system has no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_THERE:
        return False
    raise OSError(code, os.strerror(code), str(new))
