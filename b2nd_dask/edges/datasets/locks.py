"""Changes of a dataset in a directory take turns, by a lock on the directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import NO_LOCKS


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Keep others from changing or replacing a dataset while the block runs.

    Raises
    ------
    StaleFrameError
        Another process changes it.
    """
    fd = _lock(path)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep others from changing what is replaced, where that is a directory.

    Raises
    ------
    StaleFrameError
        Another process changes it, and `wait` is false.
    """
    fd = None
    if path.is_dir():
        try:
            fd = _lock(path, wait=wait)
        except OSError as error:
            # where there are no locks, datasets are not changed either
            if error.errno not in NO_LOCKS:
                raise
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _lock(path: Path, *, wait: bool = False) -> int:
    """Lock the directory that a path names now; returns the descriptor that holds it."""
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flock(fd, LOCK_EX if wait else LOCK_EX | LOCK_NB)
            # between the two calls another may have replaced it
            if os.path.samestat(path.stat(), os.fstat(fd)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise StaleFrameError(
                "another process changes this dataset: try again when it is done", path=str(path)
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
