"""System calls for writing: whole writes, copies inside the kernel, links, syncs."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

#: Errors of link on file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
#: Errors of copy_file_range between file systems, or on one that lacks it.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
#: Errors of file systems that cannot tell the drive to empty its cache.
_NO_FLUSH = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
_COPY_NBYTES = 1 << 24
#: Buffers that one call of the system takes.
_IOV_MAX = os.sysconf("SC_IOV_MAX")


def pwrite(fd: int, payloads: Sequence[bytes], at: int) -> None:
    """Write one behind the other at a position.

    What the system cuts short is gone on with: it writes no more than 2 GiB at once, and less where
    the disk gets full.
    """
    left = deque(memoryview(payload) for payload in payloads)
    while left:
        written = os.pwritev(fd, list(itertools.islice(left, _IOV_MAX)), at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if left:
            left[0] = left[0][written:]


def _kernel_copy(source: int, target: int, nbytes: int, start: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.copy_file_range(source, target, nbytes, start, at)


def copy_range(source: int, start: int, nbytes: int, target: int, at: int) -> None:
    """Copy bytes between files, inside the kernel where it can."""
    while nbytes:
        try:
            copied = _kernel_copy(source, target, nbytes, start, at)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            payload = os.pread(source, min(nbytes, _COPY_NBYTES), start)
            pwrite(target, [payload], at)
            copied = len(payload)
        if copied == 0:
            raise OSError(
                errno.EIO, "a staged part is shorter than when it was written; write again"
            )
        start, at, nbytes = start + copied, at + copied, nbytes - copied


def link_or_copy(source: Path, target: str | Path, folder: int | None = None) -> None:
    """Give a file another name, or a copy of it where the file system has no hard links.

    The name is relative to the descriptor of a folder, if there is one. Nothing is left where
    this fails, and what had the name before stays.
    """
    try:
        os.link(source, target, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as file:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            fd = os.open(target, flags, 0o666, dir_fd=folder)
            try:
                copy_range(file.fileno(), 0, os.fstat(file.fileno()).st_size, fd, 0)
            except BaseException:
                os.unlink(target, dir_fd=folder)
                raise
            finally:
                os.close(fd)


def write_file(path: Path, payload: bytes, *, fsync: bool = True) -> None:
    """Write a whole file anew, and wait until it is on the disk, unless `fsync` says otherwise."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        pwrite(fd, [payload], 0)
        if fsync:
            flush(fd)
    finally:
        os.close(fd)


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
