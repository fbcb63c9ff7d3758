"""Prefetch: requests for the ranges of a computation before its tasks read them.

A task that reads a chunk from a store waits for the response and then decodes it. Each thread runs
one task, so most of the time no request would be in flight. A computation passes its future reads,
in order, to `Prefetch`; its readers then find the responses there.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from b2nd_dask.storage.byte_reader import Item, coalesce
from b2nd_dask.storage.read.connection import READ_AHEAD, requests_at_once, setting
from b2nd_dask.storage.read.traffic import slots_of
from b2nd_dask.system import at_fork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from b2nd_dask.storage.byte_reader import Response

logger = logging.getLogger("b2nd_dask")

#: Bytes of items to search for neighbours: parallel writes leave chunks in any order.
_SEARCH_NBYTES = 4 << 20
#: Most items per search, for small ones.
_SEARCH_ITEMS = 128
#: Largest request for neighbouring ranges: each request costs the client about as much time as
#: 100 kB more; the bytes of a larger one could be decoded only when all of them have arrived.
MAX_MERGED = 2 << 20
#: If a task takes a request, requests more than this many before it are dropped as unneeded.
_MAX_LAG = 64
#: Most ranges to remember that were read before their request, and so need none.
_MOST_READ_EARLY = 1 << 16


@dataclass(eq=False, slots=True)
class _Segment:
    """One request for neighbouring items."""

    item: Item
    """The merged range of all of them."""
    left: int
    """Number of items that are still to be read."""
    future: Future[Response]


class Prefetch:
    """Prefetch of the reads of one computation in this process.

    The items come in the order of the reads. Reading threads take a few at a time; an exception
    ends the prefetch.
    """

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        # numbered in the order of the items
        self._segments: dict[int, _Segment] = {}
        self._count = 0
        self._read_early: set[tuple[int, str, int]] = set()
        # protects the fields above
        self._lock = threading.Lock()
        # protects the iterator; no thread waits for it
        self._fill_lock = threading.Lock()

    def begin(self) -> None:
        """Send the first requests; raise ValueError if the setting ``read_ahead`` is invalid."""
        if setting(READ_AHEAD):
            _active.append(self)
            self.fill()

    def close(self) -> None:
        """Cancel the unread requests and drop their responses."""
        with self._lock:
            if self in _active:
                _active.remove(self)
            self._items = iter(())
            for segment in self._segments.values():
                segment.future.cancel()
            self._segments.clear()

    def holds(self, item: Item) -> bool:
        """Whether a pending or unread request contains the range."""
        with self._lock:
            return self._find(item) is not None

    def fill(self) -> None:
        """Send requests up to the limits, unless another thread is sending some."""
        if not self._fill_lock.acquire(blocking=False):
            return
        try:
            while self._has_room() and (items := self._next_items()):
                self._request(items)
        except Exception as error:  # noqa: BLE001 - readers then send their own requests
            # without the text, which may hold secrets
            logger.debug("a prefetch ends after %s", type(error).__name__)
            self._items = iter(())
        finally:
            self._fill_lock.release()

    def take(self, item: Item) -> Future[Response] | None:
        """Take the request that contains a range, None if there is none."""
        with self._lock:
            number = self._find(item)
            if number is None:
                if len(self._read_early) < _MOST_READ_EARLY:
                    self._read_early.add(_key_of(item))
                return None
            segment = self._segments[number]
            segment.left -= 1
            if not segment.left:
                del self._segments[number]
            while (first := next(iter(self._segments), number)) < number - _MAX_LAG:
                del self._segments[first]
            return segment.future

    def _find(self, item: Item) -> int | None:
        """Find the number of the request that contains a range."""
        start, stop = item.span
        for number, segment in self._segments.items():
            held = segment.item
            if held.span.start <= start and stop <= held.span.stop and held[:2] == item[:2]:
                return number
        return None

    def _has_room(self) -> bool:
        most = setting(READ_AHEAD) / max(1, len(_active))
        with self._lock:
            segments = list(self._segments.values())
        if self not in _active or sum(each.item.span.nbytes for each in segments) >= most:
            return False
        slots, pending = requests_at_once(), (each for each in segments if not each.future.done())
        # the last quarter is for requests that tasks already wait for
        return sum(slots_of(each.item.span.nbytes, slots) for each in pending) < slots * 3 / 4

    def _next_items(self) -> list[Item]:
        """Take the next items that still need a request."""
        items, nbytes = [], 0
        for item in self._items:
            key = _key_of(item)
            with self._lock:
                is_read = key in self._read_early
                self._read_early.discard(key)
            if is_read or any(each is not self and each.holds(item) for each in tuple(_active)):
                continue
            items.append(item)
            nbytes += item.span.nbytes
            if nbytes >= _SEARCH_NBYTES or len(items) == _SEARCH_ITEMS:
                break
        return items

    def _request(self, items: list[Item]) -> None:
        """Send requests for items; neighbouring ones share a request."""
        spans, keys = [item.span for item in items], [item[:2] for item in items]
        for span, inside in coalesce(spans, keys, max_gap=0, max_size=MAX_MERGED):
            item = items[inside[0]]._replace(span=span)
            future = item.requester.begin(item.member, span)
            with self._lock:
                if self not in _active:  # closed meanwhile
                    future.cancel()
                    return
                self._count += 1
                self._segments[self._count] = _Segment(item, len(inside), future)


def _key_of(item: Item) -> tuple[int, str, int]:
    # the id, since a reference would keep the reader open; a reused id costs one request
    return id(item.requester), item.member, item.span.start


_active: list[Prefetch] = []
# a forked child must not use those of its parent
at_fork(after_in_child=_active.clear)


@contextmanager
def reading_ahead(items: Iterator[Item]) -> Iterator[None]:
    """Prefetch items during a ``with`` statement."""
    prefetch = Prefetch(items)
    try:
        prefetch.begin()
        yield
    finally:
        prefetch.close()


def prefetched(item: Item) -> Future[Response] | None:
    """Take the request that contains a range from the prefetches of this process, if any."""
    found = None
    for each in tuple(_active):
        found = found or each.take(item)
    return found


def fill_prefetches() -> None:
    """Send more requests, after a read has taken some and sent its own."""
    for each in tuple(_active):
        each.fill()
