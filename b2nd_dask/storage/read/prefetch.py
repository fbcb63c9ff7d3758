"""Prefetch: ranges that a computation is going to read, requested before its tasks ask for them.

A task that reads a chunk from a store waits for the response, and decodes it. As few tasks run at
once as there are threads, so that most of the time nothing would be under way. Whoever knows what
will be read, and in which order, says so by `Prefetch`; readers then find responses there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from b2nd_dask.storage.read.connection import READ_AHEAD, requests_at_once, setting
from b2nd_dask.storage.spans import Span, coalesce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from b2nd_dask.storage.byte_reader import Item, Requester, Response

    _Member = tuple[Requester, str]

logger = logging.getLogger("b2nd_dask")

#: Bytes of responses to begin with, until one of them has been of use.
_FIRST = 4 << 20
#: Bytes of items among which neighbours are looked for: parallel writes leave chunks in any order.
_TOGETHER = 4 << 20
#: Of ranges that are no neighbours so many are requested at once.
_MOST_TOGETHER = 128
#: Neighbouring ranges are requested as one up to this size: each request takes the client about as
#: long as 100 kB more.
_MERGED = 1 << 20
#: A request that no task has taken is dropped once a task takes one that began so many later.
_PASSED = 64
#: Ranges that were read before they were requested, and are not to be requested again.
_MOST_NOTED = 1 << 16


class _Segment:
    """Neighbouring items that were requested as one."""

    __slots__ = ("future", "key", "left", "number", "span")

    def __init__(self, key: _Member, span: Span, nitems: int, future: Future[Response]) -> None:
        self.key, self.span, self.future = key, span, future
        self.left = nitems
        self.number = 0

    @property
    def nbytes(self) -> int:
        return self.span.stop - self.span.start


class Prefetch:
    """What one computation of this process is going to read.

    Parameters
    ----------
    items : iterator of Item
        In the order in which they will be read. Asked for a few at a time, by the threads that
        read; an exception ends it.

    Raises
    ------
    ValueError
        The setting ``read_ahead`` is no number.
    """

    def __init__(self, items: Iterator[Item]) -> None:
        setting(READ_AHEAD)  # raises where it is no number
        self._items = items
        self._segments: dict[_Member, dict[int, _Segment]] = {}
        self._order: dict[int, _Segment] = {}
        self._held = self._count = 0
        self._is_of_use = self._is_closed = False
        # without the readers, which would stay open; an id that is used again costs a request
        self._noted: set[tuple[int, str, int]] = set()
        # of the fields above; held for microseconds
        self._lock = threading.Lock()
        # of the iterator: whoever finds it taken has better things to do
        self._feeding = threading.Lock()

    def begin(self) -> None:
        """Request what may be held, and from now on more whenever something is read."""
        if setting(READ_AHEAD):
            _active[id(self)] = os.getpid(), self
            self._fill()

    def close(self) -> None:
        """Forget all responses that nobody has read."""
        _active.pop(id(self), None)
        with self._lock:
            self._is_closed = True
            self._items = iter(())
            for segment in self._order.values():
                segment.future.cancel()
            self._segments.clear()
            self._order.clear()

    def holds(self, item: Item) -> bool:
        """Whether a range is requested already."""
        with self._lock:
            return self._find((item.requester, item.member), item.span) is not None

    def _fill(self) -> None:
        """Request as much as may be held; nothing where another thread does it."""
        if not self._feeding.acquire(blocking=False):
            return
        try:
            while self._has_room() and (items := self._pulled()):
                for segment in _requested(items):
                    self._enter(segment)
        except Exception as error:  # noqa: BLE001 - whoever reads requests what it needs
            # without the text, which may hold secrets
            logger.debug("a prefetch ends after %s", type(error).__name__)
            self._items = iter(())
        finally:
            self._feeding.release()

    def take(self, requester: Requester, member: str, span: Span) -> Future[Response] | None:
        """The request that an item is part of, None where there is none; begins others for it."""
        found = self._taken(requester, member, span)
        self._fill()
        return found

    def _taken(self, requester: Requester, member: str, span: Span) -> Future[Response] | None:
        key = requester, member
        with self._lock:
            segment = self._find(key, span)
            if segment is None:
                if len(self._noted) < _MOST_NOTED:
                    self._noted.add((id(requester), member, span.start))
                return None
            self._is_of_use = True
            segment.left -= 1
            if not segment.left:
                self._drop(segment)
            while next(iter(self._order), segment.number) < segment.number - _PASSED:
                self._drop(next(iter(self._order.values())))
            return segment.future

    def _find(self, key: _Member, span: Span) -> _Segment | None:
        segments = self._segments.get(key, {})
        found = segments.get(span.start)
        if found is None:
            starts = (start for start in segments if start <= span.start)
            found = segments.get(max(starts, default=-1))
        return found if found is not None and span.stop <= found.span.stop else None

    def _has_room(self) -> bool:
        share = setting(READ_AHEAD) / max(1, len(_own()))
        most = share if self._is_of_use else min(share, _FIRST)
        with self._lock:
            if self._is_closed:
                return False
            waiting = sum(not each.future.done() for each in self._order.values())
            # the other half is for what tasks wait for already
            return self._held < most and waiting < requests_at_once() / 2

    def _pulled(self) -> list[Item]:
        """The next items that were not read yet."""
        pulled, nbytes = [], 0
        for item in self._items:
            noted = id(item.requester), item.member, item.span.start
            with self._lock:
                is_read = noted in self._noted
                self._noted.discard(noted)
            if is_read or item.requester.has_in_memory(item.member, item.span):
                continue
            if any(each is not self and each.holds(item) for each in _own()):
                continue
            pulled.append(item)
            nbytes += item.span.stop - item.span.start
            if nbytes >= _TOGETHER or len(pulled) == _MOST_TOGETHER:
                break
        return pulled

    def _enter(self, segment: _Segment) -> None:
        with self._lock:
            if self._is_closed:
                segment.future.cancel()
                return
            self._count += 1
            segment.number = self._count
            self._held += segment.nbytes
            self._segments.setdefault(segment.key, {})[segment.span.start] = segment
            self._order[segment.number] = segment

    def _drop(self, segment: _Segment) -> None:
        segments = self._segments.get(segment.key, {})
        segments.pop(segment.span.start, None)
        if not segments:
            self._segments.pop(segment.key, None)
        if self._order.pop(segment.number, None):
            self._held -= segment.nbytes


def _requested(items: list[Item]) -> Iterator[_Segment]:
    """Request some items, neighbours as one."""
    groups: dict[_Member, list[Item]] = {}
    for item in items:
        groups.setdefault((item.requester, item.member), []).append(item)
    for key, group in groups.items():
        requester, member, _ = group[0]
        plan = coalesce([item.span for item in group], max_gap=0, max_size=_MERGED)
        counts = Counter(position.part for position in plan.positions)
        for part, span in enumerate(plan.merged):
            yield _Segment(key, span, counts[part], requester.begin(member, span))


#: With the process of each: a forked child has none.
_active: dict[int, tuple[int, Prefetch]] = {}


def _own() -> list[Prefetch]:
    return [prefetch for pid, prefetch in tuple(_active.values()) if pid == os.getpid()]


@contextmanager
def reading_ahead(items: Iterator[Item]) -> Iterator[None]:
    """Prefetch what this thread reads within a ``with`` statement."""
    prefetch = Prefetch(items)
    try:
        prefetch.begin()
        yield
    finally:
        prefetch.close()


def is_reading_ahead() -> bool:
    """Whether some computation of this process has a prefetch."""
    return bool(_own())


def prefetched(requester: Requester, member: str, span: Span) -> Future[Response] | None:
    """The request that a range is part of, where a computation of this process knew of it."""
    found = None
    for each in _own():
        found = found or each.take(requester, member, span)
    return found
