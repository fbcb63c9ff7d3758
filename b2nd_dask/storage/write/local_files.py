"""System calls for writing: whole writes, copies inside the kernel, links, locks, syncs."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage.failures import why_missing
from b2nd_dask.storage.write.durable import flush
from b2nd_dask.storage.write.local_names import target_of

#: Where Linux lists mounts; options of NFS (nfs(5); `nolock` is shown as the second) and Lustre.
_MOUNTS = "/proc/self/mountinfo"
_LOCAL_LOCKS = frozenset({"local_lock=flock", "local_lock=all", "localflock"})
#: Errors of flock on file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
#: Errors of link on file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
#: Errors of copy_file_range between file systems, or on one that lacks it.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_COPY_NBYTES = 1 << 24
#: Buffers that one call of the system takes.
_IOV_MAX = os.sysconf("SC_IOV_MAX")


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


@contextmanager
def locked(path: Path, how: int, target: str) -> Iterator[None]:
    """Lock a file, for a target; the kernel drops that of a process that dies.

    Where the file system has no locks there is none.
    """
    # NFS locks exclusively only what is open for writing
    with about(target):
        fd = os.open(path, os.O_RDWR)
    try:
        try:
            with about(target):
                fcntl.flock(fd, how)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock of a file, which others see on all hosts.

    False where the file system has no locks, or keeps them on this host.
    """
    if _keeps_locks_here(path):
        return False
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return True
        if error.errno not in NO_LOCKS:
            raise
    finally:
        os.close(fd)
    return False


def _keeps_locks_here(path: Path) -> bool:
    """Whether options of the mount say that other hosts do not see locks of its files."""
    try:
        mounts = Path(_MOUNTS).read_text(errors="replace").splitlines()
    except OSError:
        return False  # not on Linux
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    # proc_pid_mountinfo(5): the number of the device is the third field, options of the file
    # system are the last
    own = [fields for line in mounts if len(fields := line.split()) > 2 and fields[2] == number]
    return any(not _LOCAL_LOCKS.isdisjoint(fields[-1].split(",")) for fields in own)


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
