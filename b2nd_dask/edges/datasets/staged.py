"""A target that appears at once: until then a hidden directory beside it has what is written."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from b2nd_dask.storage import area_of, printable, publish_path, remove_path, sync_directory

#: Names of files that datasets, stores, sparse frames and zarr consist of.
_OURS = re.compile(
    r"dataset\.json|chunks\.b2frame|.+\.(b2nd|b2e|b2f|b2d|b2z|chunk|lock)"
    r"|zarr\.json|\.z(group|array|attrs|metadata)|c|(c\.)?\d+(\.\d+)*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Staged:
    """Where the target is written until it is complete."""

    area: Path
    """Hidden directory, also for what is needed in between."""
    ready: Path
    """What becomes the target: a file or a directory."""


@contextmanager
def staged(target: Path, *, replace: bool, advice: str) -> Iterator[Staged]:
    """Write a file or directory beside a target, and give it its name at the end.

    Where the block fails nothing is left; where the process is killed a hidden directory, which
    `list_staging` shows and `remove_staging` removes.

    Parameters
    ----------
    advice : str
        What `replace` is called where the user says it.

    Raises
    ------
    FileExistsError
        The target exists and `replace` is false, or it is a directory with files of other kinds.
    FileNotFoundError
        There is no directory to write to.
    """
    if os.path.lexists(target) and not replace:
        raise FileExistsError(errno.EEXIST, f"it exists; {advice} replaces it", str(target))
    _check_replaceable(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such directory to write to", str(target.parent)
        )
    area = area_of(target, secrets.token_hex(8))
    area.mkdir()
    try:
        made = Staged(area, area / target.name)
        yield made
        _sync(made.ready)
        # files may have come while it was written
        _check_replaceable(target)
        publish_path(made.ready, target, replace=replace)
    finally:
        # also what was there before, where it was exchanged
        remove_path(area)
        old = area.with_suffix(".old")
        if old.exists():
            remove_path(old)


def _check_replaceable(target: Path) -> None:
    """Refuse to replace a directory that has anything but arrays in it."""
    if target.is_symlink() or not target.is_dir():
        return

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(target, onerror=refuse):
        for name in names:
            if _OURS.fullmatch(name) is None:
                raise FileExistsError(
                    errno.EEXIST,
                    "it is a directory that is not replaced, since it has a file that belongs to "
                    f"no dataset ({printable(os.path.relpath(Path(folder, name), target))}); "
                    "choose another name, or move the directory away",
                    str(target),
                )


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
