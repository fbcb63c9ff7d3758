"""A target that appears at once: until then a hidden directory beside it has what is written.

Changes of a dataset in a directory take turns, by a lock on the directory.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from b2nd_dask.edges.datasets.replaceable import require_replaceable
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import (
    NO_LOCKS,
    about,
    area_of,
    frame_locked,
    publish_path,
    remove_area,
    try_lock,
)
from b2nd_dask.system import require_writable, sync

logger = logging.getLogger("b2nd_dask")
#: Errors of a disk, a quota or a limit that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def changing(path: Path, *, replaced: bool = False, wait: bool = False) -> Iterator[None]:
    """Keep others from changing or replacing a dataset while the block runs.

    Parameters
    ----------
    replaced : bool
        Whether it is to be replaced, and need not be a directory.

    Raises
    ------
    StaleFrameError
        Another process changes it, and `wait` is false.
    """
    with ExitStack() as held:
        if not replaced or path.is_dir():
            lock = frame_locked(path, str(path), is_directory=True) if wait else _locked_now(path)
            try:
                held.enter_context(lock)
            except OSError as error:
                # where there are no locks, datasets are not changed, only replaced
                if not replaced or error.errno not in NO_LOCKS:
                    raise
        yield


@contextmanager
def _locked_now(path: Path) -> Iterator[None]:
    """Hold the lock of a dataset; StaleFrameError where others hold it."""
    with about(str(path)):
        fd = try_lock(path, str(path), is_directory=True)
    if fd is None:
        raise StaleFrameError(
            "another process changes this dataset: try again when it is done", path=str(path)
        )
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def staged(
    target: Path, *, replace: bool, advice: str, fsync: bool = True, any_format: bool = False
) -> Iterator[Path]:
    """Write a file or directory beside a target, which takes its name at the end.

    Yields where it is written: in a hidden directory, which also has room for what is needed in
    between. What a link leads to is written, as other writes do, also where nothing is there yet.

    Where the block fails nothing is left; where the process is killed a hidden directory, which
    `list_staging` shows and `remove_staging` removes.

    Parameters
    ----------
    advice : str
        What `replace` is called where the user says it.
    fsync : bool
        Whether all is on the disk before it gets its name.
    any_format : bool
        As for `require_replaceable`.

    Raises
    ------
    FileExistsError
        The target exists and `replace` is false, or it is something else than frames.
    FileNotFoundError
        There is no directory to write to.
    OSError
        On Windows.
    StaleFrameError
        Another process changes the dataset that is replaced.
    """
    require_writable(str(target))
    if os.path.lexists(target) and not replace:
        raise FileExistsError(errno.EEXIST, f"it exists; {advice} replaces it", str(target))
    # the suffix of what the user named counts
    name, target = target.name, Path(os.path.realpath(target))
    # now, since what is written may take hours
    with changing(target, replaced=True):
        require_replaceable(target, any_format=any_format)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such directory to write to", str(target.parent)
        )
    area = area_of(target, secrets.token_hex(8))
    with about(str(target)):
        area.mkdir()
    try:
        ready = area / name
        yield ready
        with about(str(target)):
            if fsync:
                _sync(ready)
            with changing(target, replaced=True, wait=True):
                # files may have come while it was written
                require_replaceable(target, any_format=any_format)
                publish_path(ready, target, replace=replace, fsync=fsync)
    except OSError as error:
        if not _is_of_target(error, area):
            raise
        with about(str(target)):
            raise
    finally:
        _clean_up(target, area)


def _clean_up(target: Path, area: Path) -> None:
    """Remove what was staged; what was there before gets its name back where nothing has it."""
    for path in (area, area.with_suffix(".old")):
        try:
            remove_area(path, target)
        except OSError as error:
            logger.warning("%s: %s; `remove_staging` removes what is left", target, error)


def _is_of_target(error: OSError, area: Path) -> bool:
    """Whether an error is one of the disk that is written to, and not of what is read."""
    if error.filename is None:
        return error.errno in _FULL
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return False
    return Path(os.fsdecode(error.filename)).is_relative_to(area)


def _sync(path: Path) -> None:
    """Make a file, or a directory with all in it, durable."""
    if not path.is_dir():
        sync(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))
