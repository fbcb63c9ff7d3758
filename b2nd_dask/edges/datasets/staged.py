"""A target that appears at once: until then a hidden directory beside it has what is written."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from b2nd_dask.edges.datasets.locks import replacing
from b2nd_dask.edges.datasets.replaceable import require_replaceable
from b2nd_dask.storage import area_of, publish_path, remove_path, sync_directory

#: Errors of a disk, a quota or a limit that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Staged:
    """Where the target is written until it is complete."""

    area: Path
    """Hidden directory, also for what is needed in between."""
    ready: Path
    """What becomes the target: a file or a directory."""


@contextmanager
def staged(target: Path, *, replace: bool, advice: str, fsync: bool = True) -> Iterator[Staged]:
    """Write a file or directory beside a target, and give it its name at the end.

    What a link leads to is written, as other writes do, also where nothing is there yet.

    Where the block fails nothing is left; where the process is killed a hidden directory, which
    `list_staging` shows and `remove_staging` removes.

    Parameters
    ----------
    advice : str
        What `replace` is called where the user says it.
    fsync : bool
        Whether all is on the disk before it gets its name.

    Raises
    ------
    FileExistsError
        The target exists and `replace` is false, or it is something else than arrays.
    FileNotFoundError
        There is no directory to write to.
    StaleFrameError
        Another process changes the dataset that is replaced.
    """
    if os.path.lexists(target) and not replace:
        raise FileExistsError(errno.EEXIST, f"it exists; {advice} replaces it", str(target))
    # the suffix of what the user named counts
    name, target = target.name, Path(os.path.realpath(target))
    # now, since what is written may take hours
    with replacing(target):
        require_replaceable(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such directory to write to", str(target.parent)
        )
    area = area_of(target, secrets.token_hex(8))
    area.mkdir()
    try:
        made = Staged(area, area / name)
        yield made
        if fsync:
            _sync(made.ready)
        with replacing(target, wait=True):
            # files may have come while it was written
            require_replaceable(target)
            publish_path(made.ready, target, replace=replace, fsync=fsync)
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise
    finally:
        # also what was there before, where it was exchanged
        remove_path(area)
        old = area.with_suffix(".old")
        if old.exists():
            remove_path(old)


def _sync(path: Path) -> None:
    """Make a file, or a directory with all in it, durable."""
    if not path.is_dir():
        _sync_file(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            _sync_file(Path(folder, name))
        sync_directory(Path(folder))


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
