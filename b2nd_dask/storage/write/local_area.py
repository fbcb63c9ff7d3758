"""The hidden names beside a local target: what is staged, what is being removed, what is set aside.

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
from contextlib import suppress
from pathlib import Path

from b2nd_dask.storage.write.rename import remove_path

#: A longer name of a target is cut, since names end at 255 bytes.
_LONGEST_NAME = 150
_HIDDEN = re.compile(r"([0-9a-f]{16})\.(staging|removed|old)")


def area_of(target: Path, key: str) -> Path:
    """The staging area of a write.

    Parameters
    ----------
    target : Path
    key : str

    Returns
    -------
    Path
    """
    return target.with_name(f"{_prefix(target.name)}{key}.staging")


def key_of(hidden: Path, target: Path) -> str | None:
    """The key of the write that left something.

    Parameters
    ----------
    hidden : Path
        Beside the target.
    target : Path

    Returns
    -------
    str or None
        None for what no write to this target leaves.
    """
    prefix = _prefix(target.name)
    named = _HIDDEN.fullmatch(hidden.name.removeprefix(prefix))
    return named[1] if named and hidden.name.startswith(prefix) else None


def remove_area(hidden: Path, target: Path) -> None:
    """Remove what a write has left; tasks and commits that still use it fail.

    Parameters
    ----------
    hidden : Path
        May be gone.
    target : Path
        Gets its old frame back where that was set aside and no other took its place.
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
    """What the hidden names of a target begin with, told from others'."""
    raw = os.fsencode(name)
    if len(raw) > _LONGEST_NAME:
        name = f"{name[:32]}~{hashlib.blake2b(raw, digest_size=8).hexdigest()}"
    return f".{name}."
