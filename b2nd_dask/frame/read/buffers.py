"""Memory that is used again: a fresh page costs more than fast codecs take to fill it."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.system import at_fork, own_pages

#: glibc maps fresh pages for arrays from here on, always. What is smaller comes out of its lists,
#: warm, as soon as it has seen one such array freed; arrays that a pool keeps from being freed
#: would spoil that for everybody else (a transform of 8 MB chunks took twice as long).
_MAPPED_FROM = 32 << 20
#: Each of these settings keeps glibc from learning that (mallopt(3), M_MMAP_THRESHOLD). distributed
#: starts its workers with the first one.
_FIXING = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
)
#: For smaller arrays a pool costs more than their pages.
_LEAST_POOLED = 1 << 20
#: Bytes that wait for their next use, in the whole process; of small arrays a few blocks in flight.
_MAX_FREE, _MAX_FREE_SMALL = 256 << 20, 64 << 20
#: Larger arrays are never pooled.
_MOST_POOLED = 256 << 20
#: Smaller arrays are left to glibc also where memory is short.
_PAGED_FROM = 1 << 20
#: Such arrays are asked for in huge pages, as NumPy asks for its own.
_HUGE_FROM = 1 << 22
#: A slab serves arrays down to this part of its size.
_LEAST_USE = 0.8
#: A thread keeps no more bytes of scratch buffers than this.
MAX_SCRATCH_NBYTES = 64 << 20
#: Bytes of elements that are worked on at once. Chunks of more than `MAX_SCRATCH_NBYTES` are
#: compressed and decoded in boxes of this size: fresh pages for a whole one take longer than a
#: context of the codec for each box. Small chunks are reduced in groups of this size: the calls for
#: one take longer than its elements.
BOX_NBYTES = 1 << 23
#: Memory that nothing has used for so many seconds is let go.
_IDLE_SECONDS = 10.0


class PoolLimits(NamedTuple):
    """Which arrays come from a pool, and how much of them it keeps."""

    pooled_from: int
    """Bytes of the smallest arrays that a pool is faster for than glibc."""
    max_free_nbytes: int
    """Bytes that wait for their next use."""


def pool_limits(environment: Mapping[str, str]) -> PoolLimits:
    """What a pool is for, with glibc as it is set up."""
    if any(name in environment for name in _FIXING):
        return PoolLimits(_LEAST_POOLED, _MAX_FREE_SMALL)
    return PoolLimits(_MAPPED_FROM, _MAX_FREE)


POOLED_FROM, MAX_FREE_NBYTES = pool_limits(os.environ)


def in_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `numpy.empty`, in pages that go back to the system as soon as the array is gone.

    What glibc's lists keep of arrays below 32 MiB would count where memory is short.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _PAGED_FROM:
        return np.empty(shape, dtype)
    pages = own_pages(nbytes)
    if nbytes >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8).view(dtype).reshape(shape)


class Idle:
    """Calls a function once nothing was used for some seconds, and again after each later use."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._seconds, self._then = seconds, then
        self._last, self._watched_in = 0.0, 0
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        # processes that are forked want one without threads
        at_fork(before=self.end)

    @property
    def is_watched(self) -> bool:
        """Whether a thread waits to call the function."""
        # it is not there in a forked process
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
            except RuntimeError:  # the interpreter ends, or has no threads
                self._watched_in = 0

    def end(self) -> None:
        """Call the function now, where a thread waits to."""
        if self.is_watched and self._thread is not None:
            self._ends.set()
            with suppress(RuntimeError):  # another thread starts it just now
                self._thread.join()

    def _watch(self) -> None:
        while (left := self._last + self._seconds - time.monotonic()) > 0:
            if self._ends.wait(left):
                break
        self._watched_in = 0
        self._then()


class _Kept:
    """The buffers of a thread that are not borrowed, of increasing size."""

    __slots__ = ("__weakref__", "buffers")

    def __init__(self) -> None:
        self.buffers: list[NDArray[np.uint8]] = []


class Scratch:
    """Buffers of each thread, warm from their last use; as many as are borrowed at a time."""

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._thread = threading.local()
        # without a lock, which a fork might find held
        self._threads: deque[weakref.ref[_Kept]] = deque()
        self._idle = Idle(idle_seconds, self._let_go)

    def _of_thread(self) -> _Kept:
        kept: _Kept | None = getattr(self._thread, "kept", None)
        if kept is None:
            kept = self._thread.kept = _Kept()
            self._threads.append(weakref.ref(kept))
        return kept

    def _let_go(self) -> None:
        for thread in list(self._threads):
            kept = thread()
            if kept is None:
                self._threads.remove(thread)
            else:
                # who borrows just now has the old list in hand
                kept.buffers = []

    @contextmanager
    def borrow(self, nbytes: int) -> Iterator[NDArray[np.uint8]]:
        """Bytes with any content, for the time of a `with` block.

        Yields
        ------
        ndarray of uint8
            Nobody else has it meanwhile: a second call in the same thread gets other memory.
        """
        self._idle.used()
        mine = self._of_thread()
        kept = mine.buffers
        number = next((n for n, one in enumerate(kept) if one.nbytes >= nbytes), None)
        if number is None:
            # a new one takes the place of the largest
            del kept[-1:]
            buffer = np.empty(nbytes, np.uint8)
        else:
            buffer = kept.pop(number)
        try:
            yield buffer[:nbytes]
        finally:
            kept = mine.buffers
            if sum(one.nbytes for one in kept) + buffer.nbytes <= MAX_SCRATCH_NBYTES:
                kept.append(buffer)
                kept.sort(key=len)
            if not self._idle.is_watched:
                # nobody would let it go
                mine.buffers = []


#: Of everything that reads, writes and decodes.
scratch = Scratch()


class _Slab:
    """Memory of the pool, used by one array and its views at a time."""

    __slots__ = ("memory",)

    def __init__(self, nbytes: int) -> None:
        self.memory = np.empty(nbytes, np.uint8)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


class Pool:
    """Large arrays whose memory comes back when the last view of them is gone.

    There is no lock: a slab comes back whenever the garbage collector runs, in any thread and in
    the middle of anything. Single operations of a deque are atomic, and so is copying one to a
    list, which allocates nothing that could start the collector midway (a tuple does).
    """

    def __init__(
        self, max_free_nbytes: int = MAX_FREE_NBYTES, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._free: deque[_Slab] = deque()
        self._max_free_nbytes = max_free_nbytes
        self._idle = Idle(idle_seconds, self._free.clear)

    @property
    def free_nbytes(self) -> int:
        """Bytes that wait for their next use."""
        return sum(slab.nbytes for slab in list(self._free))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with any content, as `numpy.empty` gives it.

        Parameters
        ----------
        dtype : numpy.dtype
            Without Python objects.

        Returns
        -------
        ndarray
            Writable, in C order.

        Examples
        --------
        >>> Pool().empty((2, 3), np.dtype("f4")).shape
        (2, 3)
        """
        nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if not POOLED_FROM <= nbytes <= _MOST_POOLED:
            return np.empty(shape, dtype)
        self._idle.used()
        slab = self._take(nbytes)
        # NumPy keeps the owner of memory alive, views of views included: this object is the owner
        lease = (ctypes.c_char * slab.nbytes).from_buffer(slab.memory.data)
        weakref.finalize(lease, self._give_back, slab).atexit = False
        return np.frombuffer(memoryview(lease), np.uint8, nbytes).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> _Slab:
        for slab in list(self._free):
            if slab.nbytes * _LEAST_USE <= nbytes <= slab.nbytes:
                try:
                    self._free.remove(slab)
                except ValueError:
                    continue  # another thread was faster
                return slab
        return _Slab(nbytes)

    def _give_back(self, slab: _Slab) -> None:
        """Keep a slab, and rather than it none of those that have waited longest.

        It stays also where it alone is more than the bound: the next one takes its place. In a pool
        that is idle nothing stays.
        """
        self._free.append(slab)
        if not self._idle.is_watched:
            # whoever empties an idle pool may have been here already
            self._free.clear()
        while self.free_nbytes > self._max_free_nbytes and len(self._free) > 1:
            # another thread may be faster
            with suppress(IndexError):
                self._free.popleft()


#: Of the results of all reads of this process.
result_pool = Pool()


def writable(elements: Any) -> Any:
    """Copy an array that is read-only; return anything else as it is."""
    if isinstance(elements, np.ndarray) and not elements.flags.writeable:
        return elements.copy(order="C")
    return elements
