"""Changes of a dataset in a directory take turns, by a lock on the directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from b2nd_dask.errors import StaleFrameError


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Keep others from changing or replacing a dataset while the block runs.

    Raises
    ------
    StaleFrameError
        Another process changes it, or replaced it in this moment.
    """
    with _opened(path) as fd:
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise StaleFrameError(
                "another process changes this dataset: try again when it is done", path=str(path)
            ) from None
        if not os.path.samestat(os.fstat(fd), path.stat()):
            raise StaleFrameError(
                "another process replaced this dataset: try again", path=str(path)
            )
        yield


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Wait until nobody changes what is replaced; a path that is no directory needs no turns."""
    if not path.is_dir():
        yield
        return
    with _opened(path) as fd:
        try:
            flock(fd, LOCK_EX)
        except OSError as error:
            # a file system without locks has no changes of datasets either
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
