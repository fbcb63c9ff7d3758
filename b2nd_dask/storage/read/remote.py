"""Objects behind any URL that fsspec supports."""

from __future__ import annotations

import os
import sys
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.storage.byte_reader import (
    HEAD_NBYTES,
    MAIN_MEMBER,
    TAIL_NBYTES,
    ByteReader,
    Identity,
    Item,
    Response,
    Span,
    clip,
    coalesce,
    filled,
)
from b2nd_dask.storage.failures import what_directory
from b2nd_dask.storage.read.prefetch import prefetched
from b2nd_dask.storage.read.ranged import (
    RangeRequest,
    RemoteObject,
    RemoteStore,
    require_short,
)
from b2nd_dask.storage.read.ranged_stores import remote_store
from b2nd_dask.storage.redaction import public_url, split_query

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
    """The object, or the main member of a directory, and its first responses."""

    main: RemoteObject
    is_directory: bool
    ends: tuple[Response, ...]
    """Responses with the first bytes and, for a frame that is larger, with the last bytes."""

    def in_memory(self, span: Span) -> bytes | None:
        """Bytes of the object, if they came with the first responses."""
        start, stop = clip(span, self.main.size)
        for first, data, identity, _ in self.ends:
            if first <= start and stop <= first + len(data) and identity == self.main.known:
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
        # by process: file systems with an event loop do not survive a fork
        self._stores: dict[int, RemoteStore] = {}
        self._states: dict[str, _Opened] = {}
        self._members: dict[str, RemoteObject] = {}
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
        current = RemoteObject(self._opened().main.path, self.label)
        (response,) = store.get([RangeRequest(current, Span(start, start + 1))])
        return response.identity

    def opened_identity(self) -> Identity:
        """State of the object that all reads see."""
        return self._opened().ends[0].identity

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges in one round of concurrent requests; see `ByteReader.read`."""
        return [data for data, _ in self._read_members([(member, span) for span in spans])]

    def read_into(
        self, items: Sequence[tuple[str, Span]], targets: Sequence[memoryview]
    ) -> list[tuple[int, int]]:
        """Read byte ranges into buffers; see `ByteReader.read_into`."""
        return filled(self._read_members(items), targets)

    def requester(self) -> RemoteReader | None:
        """See `ByteReader.requester`: this reader, unless the server ignores ranges."""
        return None if self._opened().ends[0].ranges_ignored else self

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range; see `Requester.begin`."""
        # readers repeat a failed request
        return self._connected().begin(
            RangeRequest(self._object(self._opened(), member), span), attempts=1
        )

    def has_in_memory(self, member: str, span: Span) -> bool:
        """Whether a range came with the first response; see `Requester.has_in_memory`."""
        return not member and self._opened().in_memory(span) is not None

    def close(self) -> None:
        """Release the file system, which fsspec may share with other users."""
        self._closed = True
        self._stores.clear()

    def _read_members(self, items: Sequence[tuple[str, Span]]) -> list[tuple[bytes, int]]:
        """Return the bytes of each span, with the size of its member."""
        opened = self._opened()
        wanted = [(self._object(opened, member), span) for member, span in items]
        found: dict[int, tuple[bytes, int]] = {}
        ahead: dict[int, Future[Response]] = {}
        for i, (each, span) in enumerate(wanted):
            data = opened.in_memory(span) if each is opened.main else None
            if data is not None:
                found[i] = data, each.size
            elif future := prefetched(Item(self, *items[i])):
                ahead[i] = future
        absent = [i for i in range(len(items)) if i not in found and i not in ahead]
        found.update(zip(absent, self._requested([wanted[i] for i in absent]), strict=True))
        for i, future in ahead.items():
            # a failed request is repeated
            with suppress(Exception):
                found[i] = _part(future.result(), wanted[i][1])
        failed = [i for i in ahead if i not in found]
        found.update(zip(failed, self._requested([wanted[i] for i in failed]), strict=True))
        return [found[i] for i in range(len(items))]

    def _requested(self, wanted: Sequence[tuple[RemoteObject, Span]]) -> list[tuple[bytes, int]]:
        """Like `_read_members`, in one round of requests."""
        objects = [each for each, _ in wanted]
        spans = [clip(span, each.size) for each, span in wanted]
        ignored = self.requester() is None
        # if ranges are ignored, each response has all bytes up to the end of its range
        gap, most = (sys.maxsize, sys.maxsize) if ignored else (MAX_GAP, MAX_SIZE)
        merged = coalesce(spans, objects, max_gap=gap, max_size=most)
        requests = [RangeRequest(objects[inside[0]], span) for span, inside in merged]
        for each, span in requests if ignored else ():
            if each.known is not None:
                require_short(each.size, span.stop, each.label)
        found: dict[int, tuple[bytes, int]] = {}
        for response, (_, inside) in zip(self._connected().get(requests), merged, strict=True):
            found.update((i, _part(response, spans[i])) for i in inside)
        # the others are empty
        return [found.get(i, (b"", each.size)) for i, each in enumerate(objects)]

    def _object(self, opened: _Opened, member: str) -> RemoteObject:
        if not member or (opened.is_directory and member == MAIN_MEMBER):
            return opened.main
        if not opened.is_directory:
            self.require_no_member(member)
        found = self._members.get(member)
        if found is None:
            if len(self._members) >= REMEMBERED_MEMBERS:
                self._members.clear()
            made = RemoteObject(self._connected().member(member), f"{self.label}/{member}")
            found = self._members.setdefault(member, made)
        return found

    def _connected(self) -> RemoteStore:
        if self._closed:
            raise ValueError(f"{self.label}: the reader is closed")
        store = self._stores.get(os.getpid())
        if store is None:
            store = self._stores[os.getpid()] = remote_store(self._location)
        return store

    def _opened(self) -> _Opened:
        store = self._connected()
        if not self._states:
            # threads that open at the same time all take the first result
            self._states.setdefault("", self._open_main(store))
        return self._states[""]

    def _open_main(self, store: RemoteStore) -> _Opened:
        """Open the object, or the main member if the URL names a directory."""
        is_directory = False
        if not split_query(self._location.url)[0].endswith("/"):
            try:
                return self._open_at(store, is_directory=False)
            except FileNotFoundError:
                pass
            except IsADirectoryError:
                is_directory = True
        try:
            return self._open_at(store, is_directory=True)
        except FileNotFoundError:
            if not is_directory and not store.has_directory():
                raise
        raise FrameFormatError(
            f"a directory without a file {MAIN_MEMBER} is not a sparse frame"
            + what_directory(self.label),
            path=self.label,
        )

    def _open_at(self, store: RemoteStore, *, is_directory: bool) -> _Opened:
        """Request the first bytes of an object and, if they take long, the last ones, too."""
        # no variable holds the path, which may have secrets: tools show variables of tracebacks
        main, unbound = (
            RemoteObject(store.member(MAIN_MEMBER) if is_directory else store.path, self.label)
            for _ in range(2)
        )
        has_last = not (is_directory or self._location.offset)
        futures = [store.begin(RangeRequest(main, self._head_span))]
        try:
            wait(futures, TAIL_AFTER)
            if has_last and isinstance(store.fs, AsyncFileSystem) and not futures[0].done():
                last = RangeRequest(unbound, Span(-TAIL_NBYTES, 0))
                futures.append(store.begin(last, attempts=1))
            ends = [futures[0].result()]
            if ends[0].identity.size > HEAD_NBYTES:
                # after a failure, later reads request these bytes
                with suppress(Exception):
                    ends += [each.result() for each in futures[1:]]
        finally:
            for each in futures:
                each.cancel()
        main.known = ends[0].identity
        return _Opened(main, is_directory, tuple(ends))


def _part(response: Response, span: Span) -> tuple[bytes, int]:
    """Cut a span out of a response; also return the size of its object."""
    first, data, identity, _ = response
    return data[span.start - first : span.stop - first], identity.size
