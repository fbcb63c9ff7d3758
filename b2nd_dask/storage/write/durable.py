"""Waiting until bytes and names are on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

#: Errors of file systems that cannot tell the drive to empty its cache.
_NO_FLUSH = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)


def flush(fd: int) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    `fsync` of macOS hands them to the drive, which may lose what it has not written when the power
    fails; `F_FULLFSYNC` waits for the drive (fsync(2) of macOS).
    """
    whole = getattr(fcntl, "F_FULLFSYNC", None)
    if whole is not None:
        try:
            fcntl.fcntl(fd, whole)
        except OSError as error:
            if error.errno not in _NO_FLUSH:
                raise
        else:
            return
    os.fsync(fd)


def sync(path: str | Path, folder: int | None = None) -> None:
    """Wait until a file, or the names in a directory, are on the disk; `folder` as `dir_fd`."""
    fd = os.open(path, os.O_RDONLY, dir_fd=folder)
    try:
        flush(fd)
    finally:
        os.close(fd)
