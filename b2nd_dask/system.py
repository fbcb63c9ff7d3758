"""System calls that differ between Linux, macOS and Windows.

All three can read frames. Windows has no calls relative to an open directory, no sync of directory
entries, and no way to replace a file that somebody reads. Writes to local paths need all three
(docs/durability.md), so Windows does not support them.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote
from urllib.request import url2pathname

fcntl: ModuleType | None
resource: ModuleType | None
try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None

NO_FD = -1
"""Descriptor of a directory on Windows, where directories have none."""

#: Errors of link on file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
#: Errors of flock on file systems without locks.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
#: Linux's list of mounts; options of NFS (nfs(5); `nolock` appears as the second) and of Lustre.
_MOUNTS = "/proc/self/mountinfo"
_LOCAL_LOCKS = frozenset({"local_lock=flock", "local_lock=all", "localflock"})
#: Errors of copy_file_range across file systems, or on a file system without it.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
#: Errors of F_FULLFSYNC on file systems that cannot flush the cache of the drive.
_NO_FLUSH = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
_COPY_NBYTES = 1 << 24
#: From linux/fs.h and linux/fcntl.h; Python has no renameat2.
RENAME_NOREPLACE, RENAME_EXCHANGE, _AT_FDCWD = 1, 2, -100
#: Errors of a kernel or file system without renameat2, or without the flag.
_NO_RENAMEAT2 = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)

#: Without pread, threads share the position of a file; each holds this lock during a read.
_seek_lock = threading.Lock()


def at_fork(**calls: Callable[[], None]) -> None:
    """Call `os.register_at_fork` if the system can fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


def path_of_url(path: str) -> str:
    """Convert the path of a ``file://`` URL to a local path, which includes ``?`` and ``#``."""
    if os.sep == "/":
        return unquote(path)
    return url2pathname(path.replace("?", "%3F").replace("#", "%23"))


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> int:
    """Bytes of memory that `ulimit` allows this process; `sys.maxsize` without a limit."""
    if resource is None:
        return sys.maxsize
    kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA
    limits = [int(resource.getrlimit(kind)[0]) for kind in kinds]
    return min([sys.maxsize, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def own_pages(nbytes: int) -> mmap.mmap:
    """Map memory that returns to the system when its last reference goes."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    # shared pages, the default, are never huge pages, and their page faults take longer
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@contextmanager
def opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file or directory for a ``with`` block; yield its descriptor.

    The path is relative to the descriptor `folder`, if given.
    """
    fd = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def open_to_read(path: str, *, follow: bool = True, dir_fd: int | None = None) -> int:
    """Open a file or directory for reading; do not wait for the writer of a fifo.

    Without `follow`, a link raises OSError with `errno.ELOOP`. Returns the descriptor; for a
    directory on Windows, `NO_FD`.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    if not follow and hasattr(os, "O_NOFOLLOW"):
        flags |= os.O_NOFOLLOW
    elif not follow and os.path.islink(path):  # noqa: PTH114
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except PermissionError:
        if fcntl is None and os.path.isdir(path):  # noqa: PTH112
            return NO_FD
        raise


def pread(fd: int, nbytes: int, start: int) -> bytes:
    """Read at most `nbytes` bytes from a position."""
    if hasattr(os, "pread"):
        return os.pread(fd, nbytes, start)
    with _seek_lock, io.FileIO(fd, closefd=False) as file:
        file.seek(start)
        return file.read(nbytes)


def pread_into(fd: int, target: memoryview, start: int) -> int:
    """Read from a position into a buffer; return the number of bytes."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [target], start)
    found = pread(fd, len(target), start)
    target[: len(found)] = found
    return len(found)


def require_writable(path: str) -> None:
    """Check that this system can write frames to local paths; raises OSError on Windows."""
    if fcntl is None:
        raise OSError(
            errno.ENOTSUP,
            "on Windows frames at local paths can be read but not written; write to the URL of an "
            "object store, or work in the Windows Subsystem for Linux",
            path,
        )


def pwrite(fd: int, payload: bytes, at: int) -> None:
    """Write a payload at a position.

    A single system call writes at most 2 GiB, and less on a full disk; then more calls follow.
    """
    remaining = memoryview(payload)
    while remaining:
        written = os.pwrite(fd, remaining, at)
        at, remaining = at + written, remaining[written:]


def _kernel_copy(source: int, target: int, nbytes: int, start: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.copy_file_range(source, target, nbytes, start, at)


def copy_range(source: int, start: int, nbytes: int, target: int, at: int) -> None:
    """Copy bytes between files, inside the kernel if possible."""
    while nbytes:
        try:
            copied = _kernel_copy(source, target, nbytes, start, at)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            payload = os.pread(source, min(nbytes, _COPY_NBYTES), start)
            pwrite(target, payload, at)
            copied = len(payload)
        if copied == 0:
            raise OSError(
                errno.EIO, "a staged part is shorter than when it was written; write again"
            )
        start, at, nbytes = start + copied, at + copied, nbytes - copied


def link_or_copy(source: Path, target: str | Path, folder: int | None = None) -> None:
    """Link a file to a new name; copy it if the file system has no hard links.

    The name is relative to the descriptor `folder`, if given. A failure leaves no new file, and
    an existing file of this name stays.
    """
    try:
        os.link(source, target, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with opened(source, os.O_RDONLY) as old, opened(target, flags, folder) as new:
            try:
                copy_range(old, 0, os.fstat(old).st_size, new, 0)
            except BaseException:
                os.unlink(target, dir_fd=folder)
                raise


def write_file(path: Path, payload: bytes, *, fsync: bool = True) -> None:
    """Create or overwrite a file; with `fsync`, wait until it is on the disk."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        pwrite(fd, payload, 0)
        if fsync:
            flush(fd)


def flush(fd: int) -> None:
    """Wait until a file, or the entries of a directory, are on the disk.

    On macOS `fsync` does not wait for the drive, which may lose data in a power cut; `F_FULLFSYNC`
    does (fsync(2) of macOS).
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if fcntl is not None and full_sync is not None:
        try:
            fcntl.fcntl(fd, full_sync)
        except OSError as error:
            if error.errno not in _NO_FLUSH:
                raise
        else:
            return
    os.fsync(fd)


def sync(path: str | Path, folder: int | None = None) -> None:
    """Open a path and `flush` it; the path is relative to the descriptor `folder`, if given."""
    with opened(path, os.O_RDONLY, folder) as fd:
        flush(fd)


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock a file until it is closed; the kernel closes the files of a dead process.

    Returns False if another lock exists and `wait` is false, None if the file system has no locks.
    """
    if fcntl is None:
        return None
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, operation if wait else operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a file has a lock that all hosts see.

    False if the file system has no locks, or if they are local to a host.
    """
    if _has_local_locks(path):
        return False
    with opened(path, os.O_RDWR) as fd:
        return lock(fd) is False


def _has_local_locks(path: Path) -> bool:
    """Whether locks are local to this host, according to the mount options."""
    try:
        mounts = Path(_MOUNTS).read_text(errors="replace").splitlines()
    except OSError:
        return False  # not on Linux
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    # proc_pid_mountinfo(5): the device number is the third field, the options of the file system
    # are the last
    own = [fields for line in mounts if len(fields := line.split()) > 2 and fields[2] == number]
    return any(not _LOCAL_LOCKS.isdisjoint(fields[-1].split(",")) for fields in own)


def renameat2(old: Path, new: Path, flags: int) -> bool:
    """Rename with flags; return False if the system or file system lacks the call or the flag."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_RENAMEAT2:
        return False
    raise OSError(code, os.strerror(code), str(new))
