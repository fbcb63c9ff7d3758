"""Objects behind any URL that fsspec supports."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.storage.byte_reader import (
    HEAD_NBYTES,
    MAIN_MEMBER,
    TAIL_NBYTES,
    ByteReader,
    Filled,
    Identity,
    Response,
    Span,
    clip,
    coalesce,
    filled,
)
from b2nd_dask.storage.failures import what_directory
from b2nd_dask.storage.read.prefetch import prefetched
from b2nd_dask.storage.read.ranged import RangeRequest, RemoteStore, require_short
from b2nd_dask.storage.read.ranged_stores import remote_store
from b2nd_dask.storage.redaction import public_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from b2nd_dask.storage.read.location import Location

MAX_GAP = 128 * 1024
"""Largest gap to read over. A single request costs latency times bandwidth: 2 MB at 20 ms and
100 MB/s. Each of 32 concurrent requests costs about 1 ms of latency and client work (measured over
HTTP with 20 ms of latency; S3 adds its signatures), in which such a connection moves 100 kB. This
is too much for nearer stores and too little for farther or faster ones, by small factors."""

MAX_SIZE = 16 * 1024 * 1024
"""Largest merged request: it runs at the full speed of a connection, and larger ones would only
reduce concurrency."""

REMEMBERED_MEMBERS = 4096
"""Most members whose state is remembered and compared at later reads."""

TAIL_AFTER = 0.005
"""Seconds without the first bytes of an object after which an open requests the last bytes, too.
In faster stores a second request after the first costs little."""


class _Opened(NamedTuple):
    """State of the object in the first response; all later responses must have the same."""

    identity: Identity
    is_directory: bool
    ranges_ignored: bool
    ends: tuple[Response, ...]
    """Responses with the first bytes and, for a frame that is larger, with the last bytes."""

    def in_memory(self, member: str, span: Span) -> bytes | None:
        """Bytes of the object, if they came with the first responses."""
        start, stop = clip(span, self.identity.size)
        for first, data, *_ in () if member else self.ends:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        return None


class RemoteReader(ByteReader):
    """Read byte ranges of an object, or of the members of a directory, through fsspec.

    The URL may be chained, such as ``simplecache::s3://bucket/a.b2nd`` or ``zip://a.b2nd::b.zip``.
    The first call that needs them requests the first bytes at the location's offset and, if
    requests can be concurrent, the last ones of the object; spans count from the start of the
    object. All reads see the state of the object in the first response, or raise StaleFrameError:
    over http(s) and S3 after each replacement of the object, elsewhere if the size changes, or a
    version, digest or time in `info`.
    """

    identity_is_cheap = False
    batch_nbytes = 64 << 20
    max_gap = MAX_GAP

    def __init__(self, location: Location) -> None:
        self.label = public_url(location.url)
        self._location = location
        self._head_span = Span(location.offset, location.offset + HEAD_NBYTES)
        self._store: RemoteStore | None = None
        self._states: dict[str, _Opened] = {}
        self._members: dict[str, Identity] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"RemoteReader({self.label!r})"

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame. May need a request, but none after `identity`."""
        return self._opened().is_directory

    def identity(self) -> Identity:
        """Size, and the etag or another token that changes with the object."""
        if not self._states:
            return self.opened_identity()
        store = self._connected()
        if not store.fs.cachable:
            # an archive: an open file system shows its state at opening
            store = remote_store(self._location)
        start = self._head_span.start
        _, response = self._get_main(store, Span(start, start + 1))
        return response.identity

    def opened_identity(self) -> Identity:
        """State of the object that all reads see."""
        return self._opened().identity

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges in one round of concurrent requests; see `ByteReader.read`."""
        return [data for data, _ in self._read_members([(member, span) for span in spans])]

    def read_into(
        self, items: Sequence[tuple[str, Span]], targets: Sequence[memoryview]
    ) -> list[Filled]:
        """Read byte ranges into buffers; see `ByteReader.read_into`."""
        return filled(self._read_members(items), targets)

    def requester(self) -> RemoteReader | None:
        """See `ByteReader.requester`: this reader, unless the server ignores ranges."""
        return None if self._opened().ranges_ignored else self

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range; see `Requester.begin`."""
        store = self._connected()
        # readers repeat a failed request
        return store.begin(self._request(store, member, span), attempts=1)

    def has_in_memory(self, member: str, span: Span) -> bool:
        """Whether a range came with the first response; see `Requester.has_in_memory`."""
        return self._opened().in_memory(member, span) is not None

    def close(self) -> None:
        """Release the file system, which fsspec may share with other users."""
        self._closed = True
        self._store = None

    def _read_members(self, items: Sequence[tuple[str, Span]]) -> list[tuple[bytes, int]]:
        """Return the bytes of each span, with the size of its member."""
        opened = self._opened()
        main = ("", MAIN_MEMBER) if opened.is_directory else ("",)
        items = [("" if member in main else member, span) for member, span in items]
        held = ((i, opened.in_memory(*item)) for i, item in enumerate(items))
        found = {i: (data, opened.identity.size) for i, data in held if data is not None}
        absent = [i for i in range(len(items)) if i not in found]
        ahead = {i: future for i in absent if (future := prefetched(self, *items[i]))}
        self._request_into(found, items, [i for i in absent if i not in ahead])
        for i, future in ahead.items():
            # a failed request is repeated
            with suppress(Exception):
                member, span = items[i]
                (found[i],) = self._parts(future.result(), member, [span])
        self._request_into(found, items, [i for i in absent if i not in found])
        return [found[i] for i in range(len(items))]

    def _request_into(
        self,
        found: dict[int, tuple[bytes, int]],
        items: Sequence[tuple[str, Span]],
        numbers: Sequence[int],
    ) -> None:
        """Add the items of some numbers to the result of `_read_members`, in one round."""
        store = self._connected()
        groups: dict[str, list[int]] = {}
        for i in numbers:
            groups.setdefault(items[i][0], []).append(i)
        requests: list[RangeRequest] = []
        parts: list[list[int]] = []
        for member, group in groups.items():
            for span, inside in self._merged(member, [items[i][1] for i in group]):
                requests.append(self._request(store, member, span))
                parts.append([group[i] for i in inside])
        for response, inside in zip(store.get(requests), parts, strict=True):
            member, spans = items[inside[0]][0], [items[i][1] for i in inside]
            found.update(zip(inside, self._parts(response, member, spans), strict=True))
        for i in numbers:
            # the others are empty
            found.setdefault(i, (b"", self._size(items[i][0])))

    def _merged(self, member: str, spans: Sequence[Span]) -> list[tuple[Span, list[int]]]:
        size = self._size(member)
        if not self._opened().ranges_ignored:
            return coalesce(spans, max_gap=MAX_GAP, max_size=MAX_SIZE, size=size)
        # each response has all bytes up to the end of its span
        merged = coalesce(spans, max_gap=size, max_size=size, size=size)
        if merged and self._known(member) is not None:
            require_short(size, merged[-1][0].stop, self._label(member))
        return merged

    def _size(self, member: str) -> int:
        """Size of a member; before its first read a bound, since the store clips the spans."""
        known = self._known(member)
        return sys.maxsize if known is None else known.size

    def _request(self, store: RemoteStore, member: str, span: Span) -> RangeRequest:
        """Make the request for a span, with the state of its object if that is known."""
        if self._opened().is_directory:
            path = store.member(member or MAIN_MEMBER)
        else:
            self.require_no_member(member)
            path = store.path
        known = self._known(member)
        span = span if known is None else clip(span, known.size)
        return RangeRequest(path, span, known, self._label(member))

    def _known(self, member: str) -> Identity | None:
        return self._members.get(member) if member else self._opened().identity

    def _parts(
        self, response: Response, member: str, spans: Sequence[Span]
    ) -> list[tuple[bytes, int]]:
        """Cut spans out of a response; raise if the object has changed since its known state."""
        first, data, now, _ = response
        known = self._known(member)
        if known is None and data:
            if len(self._members) >= REMEMBERED_MEMBERS:
                self._members.clear()
            known = self._members.setdefault(member, now)
        if known not in (None, now):
            raise self._request(self._connected(), member, spans[0]).changed()
        return [(data[start - first : stop - first], now.size) for start, stop in spans]

    def _connected(self) -> RemoteStore:
        if self._closed:
            raise ValueError(f"{self.label}: the reader is closed")
        store = self._store
        # file systems with an event loop do not survive a fork
        if store is None or store.pid != os.getpid():
            store = self._store = remote_store(self._location)
        return store

    def _opened(self) -> _Opened:
        store = self._connected()
        if not self._states:
            started, waiting = time.monotonic(), self._begin_tail(store)
            try:
                is_directory, head = self._get_main(store, self._head_span)
                is_near = time.monotonic() < started + TAIL_AFTER
                is_whole = head.identity.size <= HEAD_NBYTES
                tail = [] if is_near or is_whole else _arrived_tail(waiting, head)
            finally:
                for future in waiting:
                    future.cancel()
            opened = _Opened(head.identity, is_directory, head.ranges_ignored, (head, *tail))
            # threads that open at the same time all take the first result
            self._states.setdefault("", opened)
        return self._states[""]

    def _begin_tail(self, store: RemoteStore) -> list[Future[Response]]:
        """Request the last bytes of the object, too, if the first ones take long."""
        is_object = not (self._location.offset or self._location.url.endswith("/"))
        if not (is_object and isinstance(store.fs, AsyncFileSystem)):
            return []
        span = Span(0, TAIL_NBYTES)
        request = RangeRequest(store.path, span, None, self.label, from_end=True)
        return [store.begin(request, after=TAIL_AFTER, attempts=1)]

    def _get_main(self, store: RemoteStore, span: Span) -> tuple[bool, Response]:
        """Read from the object, or from the main member if the URL names a directory."""
        is_there = False
        known = self._states[""].is_directory if self._states else None
        if known is False or (known is None and not self._location.url.endswith("/")):
            try:
                (response,) = store.get([RangeRequest(store.path, span, None, self.label)])
            except (FileNotFoundError, IsADirectoryError) as error:
                if known is False:
                    raise
                is_there = isinstance(error, IsADirectoryError)
            else:
                return False, response
        main = RangeRequest(store.member(MAIN_MEMBER), span, None, self.label)
        try:
            (response,) = store.get([main])
        except FileNotFoundError:
            if not is_there and not store.has_directory():
                raise
        else:
            return True, response
        raise FrameFormatError(
            f"a directory without a file {MAIN_MEMBER} is not a sparse frame"
            + what_directory(self.label),
            path=self.label,
        )

    def _label(self, member: str) -> str:
        return f"{self.label}/{member}" if member else self.label


def _arrived_tail(waiting: list[Future[Response]], head: Response) -> list[Response]:
    """List the response with the last bytes, if it is useful."""
    # after a failure, later reads request these bytes
    with suppress(Exception):
        return [r for future in waiting if (r := future.result()).identity == head.identity]
    return []
