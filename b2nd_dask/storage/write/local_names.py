"""Names on a local disk: publishing a finished frame, removing an old one.

Hidden names beside a target, of what is not, or no longer, the frame:

``.NAME.KEY.staging``
    What a write has staged.
``.NAME.KEY.removed``
    The same, given up, while it is removed.
``.NAME.KEY.old``
    A sparse frame that is being replaced, where the file system cannot exchange two directories.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage.byte_reader import MAIN_MEMBER, is_member
from b2nd_dask.storage.failures import why_missing
from b2nd_dask.system import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2, sync

#: In a staging area; locked shared by who appends, exclusively by who commits.
LOCK_NAME = "lock"
#: A longer name of a target is cut, since names end at 255 bytes.
_LONGEST_NAME = 150
_HIDDEN = re.compile(r"([0-9a-f]{16})\.(staging|removed|old)")
_AREA = re.compile(r"(?<![^/])\.([^/]+)\.[0-9a-f]{16}\.staging(?=/|$).*", re.DOTALL)
#: Errors of a rename when another writer has just put a file where a directory was, the reverse,
#: or nothing.
_REPLACED = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)
#: Errors of a removal when another writer has added an entry, or put a file in the place of a
#: directory, or a link, for which `shutil.rmtree` has an error without a number.
_CHANGED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, None)
#: Of a rename over a target that others replace; of removing a directory into which others link.
_RENAMES, _REMOVALS = 5, 100
_LONGEST_PAUSE = 0.1


def area_of(target: Path, key: str) -> Path:
    """The staging area of a write."""
    return target.with_name(f"{_prefix(target.name)}{key}.staging")


def key_of(hidden: Path, target: Path) -> str | None:
    """The key of the write that left something.

    Parameters
    ----------
    hidden : Path
        Beside the target.

    Returns
    -------
    str or None
        None for what no write to this target leaves.
    """
    prefix = _prefix(target.name)
    named = _HIDDEN.fullmatch(hidden.name.removeprefix(prefix))
    return named[1] if named and hidden.name.startswith(prefix) else None


def target_of(path: str) -> str:
    """The target in whose staging area something lies; the path itself where it lies in none.

    Names that were cut stay so (`_LONGEST_NAME`).

    Examples
    --------
    >>> target_of("/data/.t2m.b2nd.0123456789abcdef.staging/part")
    '/data/t2m.b2nd'
    """
    area = _AREA.search(path)
    return path[: area.start()] + area[1] if area else path


@contextmanager
def about(target: str) -> Iterator[None]:
    """Name the target in errors of the system, which name a hidden file or none.

    What is written inside the staging area of another target is a part of that one.
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
        # the class follows from errno: those of other packages are made in other ways
        raise OSError(error.errno, problem, target) from error


def remove_area(hidden: Path, target: Path) -> None:
    """Remove what a write has left; tasks and commits that still use it fail.

    Parameters
    ----------
    hidden : Path
        May be gone.
    target : Path
        Gets its old frame back where that was set aside and nothing else has its name.
    """
    if hidden.suffix == ".old" and not os.path.lexists(target):
        with suppress(FileNotFoundError):
            hidden.rename(target)
        return
    if hidden.suffix == ".staging":
        # under another name first: they must not find it while it is emptied
        hidden = _given_up(hidden)
    remove_path(hidden)


def _given_up(hidden: Path) -> Path:
    """Give a staging area its name for being removed, where another has not done so."""
    dead = hidden.with_suffix(".removed")
    while True:
        remove_path(dead)
        try:
            hidden.rename(dead)
        except FileNotFoundError:
            return dead
        except OSError as error:
            # another gave up an area of the same write in this moment
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return dead


def _prefix(name: str) -> str:
    """The beginning of the hidden names of a target, different from other targets'."""
    raw = os.fsencode(name)
    if len(raw) > _LONGEST_NAME:
        name = f"{name[:32]}~{hashlib.blake2b(raw, digest_size=8).hexdigest()}"
    return f".{name}."


def publish_path(ready: Path, target: Path, *, replace: bool, fsync: bool = True) -> None:
    """Give a finished file or directory its name.

    A directory that was replaced is then where `ready` was, or beside it under the name of the
    staging area that ends in ``.old``: to be removed by who removes that area.

    Parameters
    ----------
    ready : Path
        Finished, in a staging area beside `target`.
    replace : bool
        Whether something that is there may be replaced. A reader then sees the old one or the new
        one; only where a directory is involved and the file system cannot exchange names is there a
        moment without any.
    fsync : bool
        Whether the name is durable when this returns. Then `ready` must be.

    Raises
    ------
    FileExistsError
        Something is there and `replace` is false.
    """
    if replace:
        _replace(ready, target)
    else:
        _rename_new(ready, target)
    if fsync:
        sync(target.parent)


def mode_of(target: Path, is_same_form: Callable[[int], bool]) -> int | None:
    """Permissions of the file or directory that is replaced, if it is of the same form."""
    # looked at once: another writer may replace it by one of the other form
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
        return stat.S_IMODE(mode) if is_same_form(mode) else None
    return None


def require_frame(path: Path) -> None:
    """Check that what is replaced is a frame or empty."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            with os.scandir(fd) as members:
                names = [member.name for member in members]
            frame = not names or (MAIN_MEMBER in names and all(map(is_member, names)))
        else:
            # 0x9e, 0xa8 and the magic begin every frame (docs/format.md, Frame header)
            head = os.read(fd, 10)
            frame = not head or head[2:] == b"b2frame\0"
    finally:
        os.close(fd)
    if not frame:
        raise FileExistsError(
            errno.EEXIST,
            "this is not a frame, or has other files in it, and is not replaced: remove it "
            "yourself, or write to another path",
            str(path),
        )


def remove_path(path: Path) -> None:
    """Remove a file or a directory with all in it, if it is there.

    Others may remove the same, or link files into a frame that was replaced, for as long as they
    have not seen that it was.

    Raises
    ------
    OSError
        With the path.
    """
    for attempt in range(_REMOVALS):
        try:
            return _remove_once(path)
        except OSError as error:
            if error.errno not in _CHANGED or attempt == _REMOVALS - 1:
                raise type(error)(error.errno, error.strerror, str(path)) from error
            # who links has more time to see it, or to finish
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
    """Go on where another has removed an entry before."""
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
            # another writer was faster; what is there now may need the other call
            if error.errno not in _REPLACED or attempt == _RENAMES - 1 or not ready.exists():
                raise
        else:
            return


def _rename_new(ready: Path, target: Path) -> None:
    if renameat2(ready, target, RENAME_NOREPLACE):
        return
    # not atomic, but all that is left
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    ready.rename(target)


def _exchange(ready: Path, target: Path) -> None:
    """Replace a directory, which rename alone cannot do."""
    if renameat2(ready, target, RENAME_EXCHANGE):
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
