"""Concurrent writers of local files.

Processes lock a frame that changes in place, or a file of a staging area. In a staging area each
process appends to its own part file, which its threads share: each reserves a range and writes it
concurrently with others, so the lock protects the reservation, not the write.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import Identity
from b2nd_dask.storage.read.local_reader import identity_at
from b2nd_dask.storage.write.local_names import about
from b2nd_dask.storage.write.staging import Run, adjacent
from b2nd_dask.system import at_fork, lock, opened, pwrite, require_writable

logger = logging.getLogger("b2nd_dask")

#: Linux's list of mounts; options of NFS (nfs(5); `nolock` appears as the second) and of Lustre.
_MOUNTS = "/proc/self/mountinfo"
_LOCAL_LOCKS = frozenset({"local_lock=flock", "local_lock=all", "localflock"})
#: Errors of flock on file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
CHANGED = "the frame changed while its update was computed"
#: Pauses between two attempts in seconds: publishing a change takes milliseconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
#: Attempts to lock a file that others replace.
_TRIES = 5
#: Seconds between the log messages of a waiting writer.
_LONG = 10.0

#: Held while a range is reserved.
_reserving = threading.Lock()
#: Unique name of this process: process ids and even host names repeat among containers.
_process = uuid.uuid4().hex
#: Ends of the ranges that threads are writing, by device and inode of the part. All other ranges
#: end within the size of the part.
_unfinished: dict[tuple[int, int], list[int]] = {}


def _start_anew() -> None:
    global _reserving, _process
    _reserving, _process = threading.Lock(), uuid.uuid4().hex
    # the threads of these ranges exist in the parent only
    _unfinished.clear()


at_fork(after_in_child=_start_anew)


@contextmanager
def frame_locked(
    path: Path,
    label: str,
    area: Path | None = None,
    *,
    identity: Identity | None = None,
    is_directory: bool = False,
    shared: bool = False,
    wait: bool = True,
) -> Iterator[None]:
    """Hold the lock of a frame, of the index file of a sparse one, or of a dataset.

    By default wait for it.

    `label` is the path of the frame. The removal of `area`, the staging area of the waiting write,
    ends the wait. `identity` is that of the expected frame; with `is_directory` the path must name
    a directory.

    Raises FileNotFoundError if there is no frame, or the staging area was removed; OSError if the
    file system has no locks; `StaleFrameError` if another frame has replaced the expected one, or
    another process holds the lock and `wait` is false.
    """
    with unless_replaced(label, identity):
        attempt = partial(_try_lock, path, label, is_directory=is_directory, shared=shared)
        fd = _wait_for(attempt, label, area, wait=wait)
        try:
            yield
        finally:
            os.close(fd)


@contextmanager
def unless_replaced(label: str, identity: Identity | None) -> Iterator[None]:
    """Raise StaleFrameError for an error after another writer has replaced the frame."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        if identity is None:
            raise
        raise StaleFrameError(CHANGED, path=label) from error
    except FileNotFoundError as error:
        # the directory of a replaced frame is being emptied
        if identity is not None and Path(label).exists() and identity_at(label) != identity:
            raise StaleFrameError(CHANGED, path=label) from error
        raise


def _wait_for(
    attempt: Callable[[], int | None], label: str, area: Path | None, *, wait: bool
) -> int:
    """Poll until the lock is acquired; return the descriptor that holds it.

    A blocking call would not notice the removal of the staging area, nor a new file that replaces
    the locked one.
    """
    pause, began, said = _FIRST_PAUSE, time.monotonic(), 0
    while True:
        # before each attempt: an interrupt of the write removes its staging area
        if area is not None and not area.is_dir():
            message = "the staging area of this write was removed while it waited for a lock"
            raise FileNotFoundError(errno.ENOENT, message, label)
        with about(label):
            fd = attempt()
        if fd is not None:
            return fd
        if not wait:
            problem = "another process changes this dataset; try again when it is done"
            raise StaleFrameError(problem, path=label)
        if time.monotonic() - began > _LONG * (said + 1):
            said += 1
            logger.info("%s: waits for another process that changes it", label)
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the waiting writers
        pause = min(2 * pause, _LONGEST_PAUSE)


def _try_lock(path: Path, label: str, *, is_directory: bool, shared: bool) -> int | None:
    """Lock the file at a path; return the descriptor that holds the lock, for the caller to close.

    Return None if others hold the lock, or replace the file again and again. Raise OSError if the
    file system has no locks.
    """
    require_writable(label)
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_RDWR)
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            try:
                lock(fd, shared=shared)
                # others may have replaced the file between open and lock
                if is_named(path, fd):
                    undo.pop_all()
                    return fd
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                if error.errno in NO_LOCKS:
                    message = "this file system has no locks, so frames on it cannot be changed"
                    raise OSError(error.errno, message, label) from error
                raise
    return None


def is_named(path: str | Path, fd: int) -> bool:
    """Whether a path still names an open file or directory, which nothing has replaced."""
    # opened, since on NFS the result of a plain stat may be seconds old
    with suppress(FileNotFoundError), opened(path, os.O_RDONLY) as named:
        return os.path.samestat(os.fstat(named), os.fstat(fd))
    return False


@contextmanager
def locked(path: Path, target: str, *, shared: bool = False) -> Iterator[None]:
    """Lock a file of a target; without locks of the file system, do nothing."""
    # an exclusive lock on NFS needs a file that is open for writing
    with ExitStack() as held:
        with about(target):
            fd = held.enter_context(opened(path, os.O_RDWR))
            try:
                lock(fd, shared=shared, wait=True)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        yield


def is_locked(path: Path) -> bool:
    """Whether a file is locked, by a lock that all hosts see.

    False if the file system has no locks, or keeps them on this host.
    """
    if _keeps_locks_here(path):
        return False
    with opened(path, os.O_RDWR) as fd:
        try:
            lock(fd)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return True
            if error.errno not in NO_LOCKS:
                raise
    return False


def _keeps_locks_here(path: Path) -> bool:
    """Whether the mount options keep locks on this host."""
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


def append_to_part(directory: Path, payloads: Sequence[bytes], header_len: int) -> list[Run]:
    """Append to the part of this process in a staging area, as one range; a run for each payload.

    A failure leaves an unused range of undefined bytes in the part. `header_len` bytes stay free at
    the start of the part.
    """
    name = f"{_process}.part"
    nbytes = sum(map(len, payloads))
    # opened and closed for each append: on NFS the close makes the bytes visible to other hosts
    with (
        opened(directory / name, os.O_RDWR | os.O_CREAT) as fd,
        _reserved(fd, nbytes, header_len) as start,
    ):
        pwrite(fd, payloads, start)
    return adjacent(name, payloads, start)


@contextmanager
def _reserved(fd: int, nbytes: int, header_len: int) -> Iterator[int]:
    """Reserve a range behind all others for this thread; yield its start."""
    with _reserving:
        state = os.fstat(fd)
        part = (state.st_dev, state.st_ino)
        ends = _unfinished.setdefault(part, [])
        start = max(state.st_size, header_len, *ends)
        ends.append(start + nbytes)
    try:
        yield start
    finally:
        with _reserving:
            ends.remove(start + nbytes)
            if not ends:
                del _unfinished[part]
