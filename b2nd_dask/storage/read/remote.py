"""Objects behind any URL that fsspec understands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.storage.byte_reader import (
    HEAD_NBYTES,
    MAIN_MEMBER,
    Filled,
    Identity,
    Response,
    copy_into,
    group_by_member,
)
from b2nd_dask.storage.failures import public_error, what_directory
from b2nd_dask.storage.read.connection import Connection, connect
from b2nd_dask.storage.read.prefetch import prefetched
from b2nd_dask.storage.read.ranged import (
    FailedRequest,
    RangeRequest,
    RangeSource,
    changed,
    require_short,
)
from b2nd_dask.storage.read.ranged_any import AnyRanges, CopyRanges
from b2nd_dask.storage.read.ranged_stores import HttpRanges, S3Ranges
from b2nd_dask.storage.redaction import public_url
from b2nd_dask.storage.spans import Reading, Span, clip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from b2nd_dask.storage.read.location import Location

MAX_GAP = 128 * 1024
"""Bytes to read over. A request that waits alone costs latency times bandwidth, 2 MB at 20 ms and
100 MB/s. Of `CONCURRENCY` at the same time each costs about 1 ms, latency and the client's work
together (measured over HTTP with 20 ms of latency; signing for S3 adds to it), in which such a
connection moves 100 kB. For nearer stores this is too much, for farther or faster ones too
little, by small factors."""

MAX_SIZE = 16 * 1024 * 1024
"""Requests of this size already run at the full speed of a connection; merging further would only
take away concurrency."""

REMEMBERED_MEMBERS = 4096
"""Members whose state is remembered, so that later reads can be compared with it."""

_UNKNOWN_SIZE = 2**63 - 1
"""Of members that were not read yet: the store clips."""


class _Opened(NamedTuple):
    """What the first response says of the object; all later ones must agree."""

    identity: Identity
    is_directory: bool
    ranges_ignored: bool
    head: Response
    """The first bytes, which serve all reads of a small frame."""


class _Round(NamedTuple):
    """The requests that serve the spans of one member."""

    member: str
    reading: Reading
    requests: list[RangeRequest]
    size: int
    """Of the member, where it was read before."""


class RemoteReader:
    """Read byte ranges of an object, or of the members of a directory, through fsspec.

    The first call that needs it fetches the first bytes of the object; no request is made before.
    All reads see the state of the object that the first response came from, or raise
    StaleFrameError: over http(s) and S3 whenever the object was replaced, elsewhere when its
    size, or a version, a digest or a time that `info` reports, changed.

    Parameters
    ----------
    location : Location
        A URL, which may be chained, such as ``simplecache::s3://bucket/a.b2nd`` or
        ``zip://a.b2nd::b.zip``. The bytes from its offset on are read first; spans count from the
        begin of the object all the same.
    """

    identity_is_cheap = False
    batch_nbytes = 64 << 20
    max_gap = MAX_GAP

    def __init__(self, location: Location) -> None:
        self.label = public_url(location.url)
        self._location = location
        self._head_span = Span(location.offset, location.offset + HEAD_NBYTES)
        self._connection: Connection | None = None
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
        """Size, and etag or whatever else the store has that changes with the object."""
        if not self._states:
            return self.opened_identity()
        connection = self._connected()
        if not connection.fs.cachable:
            # An archive: what is open shows the state of the archive when it was opened.
            connection = connect(self._location)
        start = self._head_span.start
        _, response = self._get_main(connection, Span(start, start + 1))
        return response.identity

    def opened_identity(self) -> Identity:
        """State of the object that all reads see."""
        return self._opened().identity

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges in one round of concurrent requests; see `ByteReader.read`."""
        return [data for data, _ in self._read_members([(member, span) for span in spans])]

    def read_into(
        self, spans: Sequence[Span], targets: Sequence[memoryview], member: str = ""
    ) -> list[int]:
        """Read byte ranges into buffers; see `ByteReader.read_into`."""
        return copy_into(self.read(spans, member), targets)

    def read_members_into(
        self, items: Sequence[tuple[str, Span]], targets: Sequence[memoryview]
    ) -> list[Filled]:
        """Read byte ranges of several members; see `ByteReader.read_members_into`."""
        results = self._read_members(items)
        counts = copy_into([data for data, _ in results], targets)
        return [Filled(count, size) for count, (_, size) in zip(counts, results, strict=True)]

    def requester(self) -> RemoteReader | None:
        """See `ByteReader.requester`: this reader, where requests may be concurrent."""
        can = not self._opened().ranges_ignored and _source(self._connected()).can_begin
        return self if can else None

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range; see `Requester.begin`."""
        connection = self._connected()
        return _source(connection).begin(self._request(connection, member, span))

    def has_in_memory(self, member: str, span: Span) -> bool:
        """Whether a range came with the first response; see `Requester.has_in_memory`."""
        return _in_memory(self._opened(), member, span) is not None

    def member_size(self, member: str) -> int:
        """Bytes in a member, requested anew; see `ByteReader.member_size`."""
        if not member:
            return self.identity().size
        connection, opened = self._connected(), self._opened()
        label = self._label(member)
        request = RangeRequest(self._path(connection, opened, member), Span(0, 1), None, label)
        (response,) = self._get(connection, [request])
        return response.identity.size

    def close(self) -> None:
        """Release the file system, which fsspec may use for others."""
        self._closed = True
        self._connection = None

    def _read_members(self, items: Sequence[tuple[str, Span]]) -> list[tuple[bytes, int]]:
        """Bytes of each span, and the size of the member that they come from."""
        opened = self._opened()
        main = ("", MAIN_MEMBER) if opened.is_directory else ("",)
        items = [("" if member in main else member, span) for member, span in items]
        found: dict[int, tuple[bytes, int]] = {}
        futures: dict[int, Future[Response]] = {}
        for i, item in enumerate(items):
            if (data := _in_memory(opened, *item)) is not None:
                found[i] = data, opened.identity.size
            elif (future := prefetched(self, *item)) is not None:
                futures[i] = future
        absent = [i for i in range(len(items)) if i not in found and i not in futures]
        found |= zip(absent, self._requested([items[i] for i in absent]), strict=True)
        found |= {i: got for i, f in futures.items() if (got := self._arrived(f, *items[i]))}
        failed = [i for i in futures if i not in found]
        found |= zip(failed, self._requested([items[i] for i in failed]), strict=True)
        return [found[i] for i in range(len(items))]

    def _requested(self, items: Sequence[tuple[str, Span]]) -> list[tuple[bytes, int]]:
        """As `_read_members`, in one round of requests."""
        connection, opened = self._connected(), self._opened()
        groups = group_by_member(items)
        rounds = [
            self._planned(connection, opened, member, [items[i][1] for i in numbers])
            for member, numbers in groups.items()
        ]
        responses = iter(self._get(connection, [r for each in rounds for r in each.requests]))
        results = [(b"", 0)] * len(items)
        for each, numbers in zip(rounds, groups.values(), strict=True):
            own = [(next(responses), request) for request in each.requests]
            parts = [self._part(response, request, each.member) for response, request in own]
            size = own[0][0].identity.size if own else each.size
            for i, data in zip(numbers, each.reading.results(parts), strict=True):
                results[i] = data, size
        return results

    def _arrived(
        self, future: Future[Response], member: str, span: Span
    ) -> tuple[bytes, int] | None:
        """As `_read_members`, of a span that was requested ahead; None where that failed."""
        try:
            response = future.result()
        except Exception:  # noqa: BLE001 - requested again, with an error that names the object
            return None
        size = response.identity.size
        start, stop = (at - response.start for at in clip(span, size))
        data = response.data[start:stop]
        request = self._request(self._connected(), member, span)
        self._part(response._replace(start=request.span.start, data=data), request, member)
        return data, size

    def _request(self, connection: Connection, member: str, span: Span) -> RangeRequest:
        """A request for a span of the state that is read, as far as that is known."""
        opened = self._opened()
        known = self._members.get(member) if member else opened.identity
        span = span if known is None else clip(span, known.size)
        return RangeRequest(
            self._path(connection, opened, member), span, known, self._label(member)
        )

    def _connected(self) -> Connection:
        if self._closed:
            raise ValueError(f"{self.label}: the reader is closed")
        connection = self._connection
        # File systems with an event loop do not survive a fork.
        if connection is None or connection.pid != os.getpid():
            connection = self._connection = connect(self._location)
        return connection

    def _opened(self) -> _Opened:
        connection = self._connected()
        if not self._states:
            is_directory, head = self._get_main(connection, self._head_span)
            opened = _Opened(head.identity, is_directory, head.ranges_ignored, head)
            # Of several threads that open at the same time, all take what one of them found.
            self._states.setdefault("", opened)
        return self._states[""]

    def _get_main(self, connection: Connection, span: Span) -> tuple[bool, Response]:
        """Read from the object, or from the main member where the URL names a directory."""
        known = self._states[""].is_directory if self._states else None
        is_there = False
        if known is False or (known is None and not self._location.url.endswith("/")):
            try:
                (response,) = self._get(
                    connection, [RangeRequest(connection.path, span, None, self.label)]
                )
            except (FileNotFoundError, IsADirectoryError) as error:
                if known is False:
                    raise
                is_there = isinstance(error, IsADirectoryError)
            else:
                return False, response
        try:
            (response,) = self._get(
                connection, [RangeRequest(connection.member(MAIN_MEMBER), span, None, self.label)]
            )
        except FileNotFoundError:
            if not is_there and not self._has_directory(connection):
                raise
        else:
            return True, response
        raise FrameFormatError(
            f"a directory without a file {MAIN_MEMBER} is not a sparse frame"
            + what_directory(self.label),
            path=self.label,
        )

    def _has_directory(self, connection: Connection) -> bool:
        source = _source(connection)
        return connection.call(lambda: source.has_directory(connection.path), self.label)

    def _path(self, connection: Connection, opened: _Opened, member: str) -> str:
        if opened.is_directory:
            return connection.member(member or MAIN_MEMBER)
        if member:
            raise ValueError(f"{self.label} is one object; it has no member {member!r}")
        return connection.path

    def _planned(
        self, connection: Connection, opened: _Opened, member: str, spans: Sequence[Span]
    ) -> _Round:
        path = self._path(connection, opened, member)
        known = self._members.get(member) if member else opened.identity
        size = _UNKNOWN_SIZE if known is None else known.size
        whole = opened.ranges_ignored
        reading = Reading.of(
            spans,
            size=size,
            max_gap=size if whole else MAX_GAP,
            max_size=size if whole else MAX_SIZE,
        )
        merged, label = reading.plan.merged, self._label(member)
        if whole and known is not None and merged:
            require_short(size, merged[-1].stop, label)
        requests = [RangeRequest(path, span, known, label) for span in merged]
        return _Round(member, reading, requests, size)

    def _get(self, connection: Connection, requests: Sequence[RangeRequest]) -> list[Response]:
        """Request ranges, with errors that name the object and hold no secrets."""
        if not requests:
            return []
        source = _source(connection)
        outcome = connection.call(lambda: source.get(requests), self.label)
        if not isinstance(outcome, FailedRequest):
            return outcome
        failure = public_error(outcome.error, outcome.request.label, connection.secrets)
        del outcome  # no variable may refer to the original
        raise failure

    def _label(self, member: str) -> str:
        return f"{self.label}/{member}" if member else self.label

    def _part(self, response: Response, request: RangeRequest, member: str) -> bytes:
        """Bytes of a request, if they come from the state of the object that is read."""
        known = request.known
        if known is None and response.data:
            if len(self._members) >= REMEMBERED_MEMBERS:
                self._members.clear()
            known = self._members.setdefault(member, response.identity)
        if known not in (None, response.identity):
            raise changed(request)
        return response.data[request.span.start - response.start :]


def _source(connection: Connection) -> RangeSource:
    if connection.has_protocol("https") and hasattr(connection.fs, "set_session"):
        return HttpRanges(connection.fs)
    if connection.has_protocol("s3") and hasattr(connection.fs, "call_s3"):
        return S3Ranges(connection.fs)
    if connection.has_protocol("simplecache"):
        return CopyRanges(connection.fs)
    return AnyRanges(connection.fs)


def _in_memory(opened: _Opened, member: str, span: Span) -> bytes | None:
    """Bytes of the span, if they came with the first response."""
    if member:
        return None
    start, stop = clip(span, opened.identity.size)
    first, data = opened.head.start, opened.head.data
    inside = first <= start and stop <= first + len(data)
    return data[start - first : stop - first] if inside else None
