"""The part file of a process in a staging area.

Threads of the process share it. Each reserves a range of the part and writes it concurrently with
others: the lock protects the reservation, not the write.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from b2nd_dask.storage.write.staging import Run, adjacent
from b2nd_dask.system import at_fork, pwrite

#: Held while a range is reserved.
_lock = threading.Lock()
#: Unique name of this process: process ids and even host names repeat among containers.
_process = uuid.uuid4().hex
#: Ends of the ranges that threads are writing, by device and inode of the part. All other ranges
#: end within the size of the part.
_unfinished: dict[tuple[int, int], list[int]] = {}


def _start_anew() -> None:
    global _lock, _process
    _lock, _process = threading.Lock(), uuid.uuid4().hex
    # the threads of these ranges exist in the parent only
    _unfinished.clear()


at_fork(after_in_child=_start_anew)


def append_to_part(directory: Path, payloads: Sequence[bytes], header_len: int) -> list[Run]:
    """Append to the part of this process in a staging area, as one range; a run for each payload.

    A failure leaves an unused range of undefined bytes in the part. `header_len` bytes stay free at
    the start of the part.
    """
    name = f"{_process}.part"
    nbytes = sum(map(len, payloads))
    # opened and closed for each append: on NFS the close makes the bytes visible to other hosts
    fd = os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with _range(fd, nbytes, header_len) as start:
            pwrite(fd, payloads, start)
    finally:
        os.close(fd)
    return adjacent(name, payloads, start)


@contextmanager
def _range(fd: int, nbytes: int, header_len: int) -> Iterator[int]:
    """Reserve a range behind all others for this thread; yield its start."""
    with _lock:
        state = os.fstat(fd)
        part = (state.st_dev, state.st_ino)
        ends = _unfinished.setdefault(part, [])
        start = max(state.st_size, header_len, *ends)
        ends.append(start + nbytes)
    try:
        yield start
    finally:
        with _lock:
            ends.remove(start + nbytes)
            if not ends:
                del _unfinished[part]
