"""Reused memory, since mapping a fresh page takes longer than decoding into it by a fast codec."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.system import at_fork, own_pages

#: Arrays of at least this size get new pages; for smaller ones glibc is faster.
_OWN_PAGES_FROM = 1 << 20
#: Bytes of the smallest and of the largest pooled arrays.
POOLED_FROM = 4 << 20
_MOST_POOLED = 256 << 20
#: Most free bytes of a pool in the process.
MAX_FREE_NBYTES = 256 << 20
#: A slab serves arrays of at least this fraction of its size.
_LEAST_USE = 0.8
#: Most bytes of scratch buffers that a thread keeps.
MAX_SCRATCH_NBYTES = 64 << 20
#: Bytes of elements to process at once. Chunks above `MAX_SCRATCH_NBYTES` are compressed and
#: decoded in boxes of this size: fresh pages for a whole chunk take longer than a codec context for
#: each box. Small chunks are reduced, or computed and written, in groups of this size: the calls
#: for a single one take longer than the work on its elements.
BOX_NBYTES = 1 << 23
#: Memory that is unused for this many seconds is freed.
_IDLE_SECONDS = 10.0


def in_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Like `numpy.empty`, with pages that return to the system when the array is freed.

    glibc would keep freed arrays below 32 MiB, which matters if memory is short.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _OWN_PAGES_FROM:
        return np.empty(shape, dtype)
    pages = own_pages(nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8).view(dtype).reshape(shape)


class Idle:
    """Calls a function when there was no use for some seconds, and again after later uses."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._seconds, self._then = seconds, then
        self._last, self._watched_in = 0.0, 0
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        # stop the thread before a fork: forks of threaded processes are unsafe
        at_fork(before=self.end)

    @property
    def is_watched(self) -> bool:
        """Whether a thread waits to call the function."""
        # a forked process lacks the thread
        return self._watched_in == os.getpid()

    def used(self) -> None:
        """Restart the timer. Not for finalizers, which must not start threads."""
        self._last = time.monotonic()
        if not self.is_watched:
            self._watched_in = os.getpid()
            self._ends.clear()
            self._thread = threading.Thread(target=self._watch, name="b2nd_dask-idle", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter shuts down, or has no threads
                self._watched_in = 0

    def end(self) -> None:
        """Call the function now if a thread waits to call it."""
        if self.is_watched and self._thread is not None:
            self._ends.set()
            with suppress(RuntimeError):  # another thread is starting it
                self._thread.join()

    def _watch(self) -> None:
        while (left := self._last + self._seconds - time.monotonic()) > 0:
            if self._ends.wait(left):
                break
        self._watched_in = 0
        self._then()


class Scratch:
    """Reused buffers of each thread, warm from the last use; several may be borrowed at a time."""

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._release()
        self._idle = Idle(idle_seconds, self._release)

    def _release(self) -> None:
        # frees the buffers of all threads; no lock, since a fork might leave it locked
        self._threads = threading.local()

    @property
    def kept(self) -> list[NDArray[np.uint8]]:
        """The free buffers of this thread, by increasing size."""
        found: list[NDArray[np.uint8]] = self._threads.__dict__.setdefault("kept", [])
        return found

    @contextmanager
    def borrow(self, nbytes: int) -> Iterator[NDArray[np.uint8]]:
        """Borrow bytes with arbitrary content for a `with` block.

        A second call during the block, in the same thread, gets other memory.
        """
        self._idle.used()
        kept = self.kept
        number = next((n for n, one in enumerate(kept) if one.nbytes >= nbytes), None)
        if number is None:
            # a new buffer replaces the largest
            del kept[-1:]
            buffer = np.empty(nbytes, np.uint8)
        else:
            buffer = kept.pop(number)
        try:
            yield buffer[:nbytes]
        finally:
            kept = self.kept
            if sum(one.nbytes for one in kept) + buffer.nbytes <= MAX_SCRATCH_NBYTES:
                kept.append(buffer)
                kept.sort(key=len)
            if not self._idle.is_watched:
                # no thread would free them
                kept.clear()


#: The buffers for all reads, writes and decoding.
scratch = Scratch()


class Pool:
    """Large arrays whose memory returns to the pool when their last view is freed.

    There is no lock, since the garbage collector may return a slab at any time, in any thread.
    Single operations of a deque are atomic. So is its copy to a list, which allocates nothing that
    could start the collector in between (a tuple does).
    """

    def __init__(
        self, max_free_nbytes: int = MAX_FREE_NBYTES, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._free: deque[NDArray[np.uint8]] = deque()
        self._max_free_nbytes = max_free_nbytes
        self._idle = Idle(idle_seconds, self._free.clear)

    @property
    def free_nbytes(self) -> int:
        """Free bytes in the pool."""
        return sum(slab.nbytes for slab in list(self._free))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Create a writable array in C order with arbitrary content, like `numpy.empty`.

        The dtype is one without Python objects.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if not POOLED_FROM <= nbytes <= _MOST_POOLED:
            return np.empty(shape, dtype)
        self._idle.used()
        slab = self._take(nbytes)
        # the owner of the memory, which NumPy keeps alive with the last view of it
        lease = (ctypes.c_char * slab.nbytes).from_buffer(slab.data)
        weakref.finalize(lease, self._return, slab).atexit = False
        return np.frombuffer(memoryview(lease), np.uint8, nbytes).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        # the latest first: its pages are in the cache; slabs that do not fit become the oldest
        for _ in range(len(self._free)):
            # another thread may take it first
            with suppress(IndexError):
                slab = self._free.pop()
                if slab.nbytes * _LEAST_USE <= nbytes <= slab.nbytes:
                    return slab
                self._free.appendleft(slab)
        return np.empty(nbytes, np.uint8)

    def _return(self, slab: NDArray[np.uint8]) -> None:
        """Return a slab to the pool; above the limit, drop the oldest slabs.

        The last slab stays even if it alone exceeds the limit. An idle pool keeps no slab.
        """
        self._free.append(slab)
        if not self._idle.is_watched:
            # the pool may have been emptied before this append
            self._free.clear()
        while self.free_nbytes > self._max_free_nbytes and len(self._free) > 1:
            # another thread may take it first
            with suppress(IndexError):
                self._free.popleft()


#: The pool for the results of all reads of this process.
result_pool = Pool()


def writable(elements: Any) -> Any:
    """Copy a read-only array; return anything else unchanged."""
    if isinstance(elements, np.ndarray) and not elements.flags.writeable:
        return elements.copy(order="C")
    return elements
