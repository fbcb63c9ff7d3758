"""What a process appends to in a staging area: a part file of its own.

Threads of a process share it. Each reserves a range of the part first, and writes into it while
others write into theirs: the lock is held for a number, not for the disk.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from b2nd_dask.storage.write.staging import Run
from b2nd_dask.system import at_fork, pwrite

#: Locked while a range is reserved.
_lock = threading.Lock()
#: Of this process alone: process ids and even host names repeat among containers.
_process = uuid.uuid4().hex
#: Where ranges end that threads are filling, by device and inode of the part. The size of the part
#: says where the others end.
_unfinished: dict[tuple[int, int], list[int]] = {}


def _start_anew() -> None:
    global _lock, _process
    _lock, _process = threading.Lock(), uuid.uuid4().hex
    # threads of the parent, which are not in the child
    _unfinished.clear()


at_fork(after_in_child=_start_anew)


def append_to_part(directory: Path, payloads: Sequence[bytes], header_len: int) -> list[Run]:
    """Append to the part of this process, as one range.

    Where that fails, the part has a range that nobody names, full of anything.

    Parameters
    ----------
    directory : Path
        The staging area.
    header_len : int
        Bytes that are left free at the start of the part.

    Returns
    -------
    list of Run
        One for each.
    """
    name = f"{_process}.part"
    nbytes = sum(map(len, payloads))
    # opened and closed for each append: closing makes the bytes visible to other machines on NFS
    fd = os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with _range(fd, nbytes, header_len) as start:
            pwrite(fd, payloads, start)
    finally:
        os.close(fd)
    edges = itertools.accumulate(map(len, payloads), initial=start)
    return [Run(name, *ends) for ends in itertools.pairwise(edges)]


@contextmanager
def _range(fd: int, nbytes: int, header_len: int) -> Iterator[int]:
    """Keep other threads out of a range behind all others, which starts there."""
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
