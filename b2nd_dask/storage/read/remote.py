"""Objects behind any URL that fsspec supports."""

from __future__ import annotations

import os
import sys
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

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
)
from b2nd_dask.storage.failures import what_directory
from b2nd_dask.storage.read.prefetch import MAX_MERGED, fill_prefetches, prefetched
from b2nd_dask.storage.read.ranged import RangeRequest, RemoteObject, RemoteStore, require_small
from b2nd_dask.storage.read.ranged_stores import remote_store
from b2nd_dask.storage.urls import below, split_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from b2nd_dask.storage.read.location import Location

MAX_GAP = 128 * 1024
"""Largest gap that a request spans. A single request costs latency times bandwidth: 2 MB at 20 ms
and 100 MB/s. Each of 32 concurrent requests costs about 1 ms of latency and client work (measured
over HTTP with 20 ms of latency; S3 adds its signatures), in which such a connection moves 100 kB.
This is too much for nearer stores and too little for farther or faster ones, by small factors."""

REMEMBERED_MEMBERS = 4096
"""Most members with a remembered state, which later reads must find."""

TAIL_AFTER = 0.005
"""If the first bytes take longer than these seconds, an open also requests the last bytes.
In faster stores a second request after the first costs little."""


class RemoteReader(ByteReader):
    """Read byte ranges of an object, or of the members of a directory, through fsspec.

    The URL may be chained, such as ``simplecache::s3://bucket/a.b2nd`` or ``zip://a.b2nd::b.zip``.
    The first call requests the first bytes at the location's offset and, if requests can be
    concurrent, the last bytes of the object. Spans count from the start of the object. All reads
    see the state of the object in the first response, or raise StaleFrameError: over http(s) and S3
    after each replacement of the object, in other stores if the size or a version, digest or time
    in `info` changes.
    """

    identity_is_cheap = False
    batch_nbytes = 64 << 20
    max_gap = MAX_GAP

    def __init__(self, location: Location) -> None:
        self.label = location.object_label
        self._location = location
        # by process: file systems with an event loop do not survive a fork
        self._stores: dict[int, RemoteStore] = {}
        self._objects: dict[str, RemoteObject] = {}
        """By member name; the main object, whatever its name, by an empty one."""
        self._closed = False

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame. May need a request, but none after `identity`."""
        return self._main().path != self._connected().path

    def identity(self) -> Identity:
        """Size, and the etag or another token that changes with the object."""
        if not self._objects:
            return self.opened_identity()
        store, start = self._connected(), self._location.offset
        if not store.fs.cachable:
            # an archive: an open file system shows its state at opening
            store = remote_store(self._location)
        current = RemoteObject(self._main().path, self.label)
        return store.begin(RangeRequest(current, Span(start, start + 1))).result().identity

    def opened_identity(self) -> Identity:
        """Identity of the object in the state that all reads see."""
        return self._main().ends[0].identity

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges in one round of concurrent requests; see `ByteReader.read`."""
        return [bytes(data) for data, _ in self.read_each([(member, span) for span in spans])]

    def item(self, member: str, span: Span) -> Item | None:
        """See `ByteReader.item`; None if the server ignores ranges."""
        is_kept = _kept_end(self._object(member), span) is not None
        return None if is_kept or self._main().ends[0].ranges_ignored else Item(self, member, span)

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range; see `Requester.begin`."""
        # readers repeat a failed request
        return self._connected().begin(RangeRequest(self._object(member), span), attempts=1)

    def close(self) -> None:
        """Release the file system, which fsspec may share with other users."""
        self._closed = True
        self._stores.clear()

    def read_each(
        self, items: Sequence[tuple[str, Span]], buffers: Sequence[memoryview] = ()
    ) -> Generator[tuple[memoryview, int]]:
        """Send all requests, then read the responses; see `ByteReader.read_each`."""
        wanted = [(self._object(member), span) for member, span in items]
        found: dict[int, tuple[memoryview, int]] = {}
        prefetches: dict[int, Future[Response]] = {}
        unrequested: dict[int, tuple[RemoteObject, Span]] = {}
        for i, (each, span) in enumerate(wanted):
            if kept := _kept_end(each, span):
                found[i] = _part(kept, span)
            elif future := prefetched(Item(self, *items[i])):
                prefetches[i] = future
            else:
                unrequested[i] = each, span
        with self._requested(unrequested) as responses:
            fill_prefetches()
            for i, (each, span) in enumerate(wanted):
                if future := prefetches.pop(i, None):
                    with suppress(Exception):
                        found[i] = _part(future.result(), span)
                    if i not in found:
                        repeated = self._connected().begin(RangeRequest(each, span))
                        found[i] = _part(repeated.result(), span)
                while i not in found:
                    # without a response the span is empty
                    found |= next(responses, {i: (memoryview(b""), each.size)})
                yield found.pop(i)

    @contextmanager
    def _requested(
        self, wanted: Mapping[int, tuple[RemoteObject, Span]]
    ) -> Iterator[Iterator[dict[int, tuple[memoryview, int]]]]:
        """Send requests for spans; iterate over the responses, each with the bytes of its spans."""
        objects = [each for each, _ in wanted.values()]
        spans = [clip(span, each.size) for each, span in wanted.values()]
        # if ranges are ignored, each response has all bytes up to the end of its range
        ignored = self._main().ends[0].ranges_ignored
        gap, most = (sys.maxsize, sys.maxsize) if ignored else (MAX_GAP, MAX_MERGED)
        merged = coalesce(spans, objects, max_gap=gap, max_size=most)
        # in the order of the items; parallel writes leave the chunks of a file in any order
        merged.sort(key=lambda row: min(row[1]))
        requests = [RangeRequest(objects[inside[0]], span) for span, inside in merged]
        for each, span in requests if ignored else ():
            if each.known is not None:
                require_small(each.size, span.stop, each.label)
        numbers = list(wanted)
        with self._connected().get(requests) as responses:
            yield (
                {numbers[i]: _part(response, spans[i]) for i in inside}
                for response, (_, inside) in zip(responses, merged, strict=True)
            )

    def _object(self, member: str) -> RemoteObject:
        main = self._main()
        if not member or (self.is_directory and member == MAIN_MEMBER):
            return main
        if not self.is_directory:
            self.require_no_member(member)
        found = self._objects.get(member)
        if found is None:
            if len(self._objects) > REMEMBERED_MEMBERS:
                self._objects = {"": main}
            path, label = below(self._connected().path, member), f"{self.label}/{member}"
            found = self._objects.setdefault(member, RemoteObject(path, label))
        return found

    def _connected(self) -> RemoteStore:
        if self._closed:
            raise ValueError(f"{self.label}: the reader is closed")
        store = self._stores.get(os.getpid())
        if store is None:
            store = self._stores[os.getpid()] = remote_store(self._location)
        return store

    def _main(self) -> RemoteObject:
        store = self._connected()
        if not self._objects:
            # threads that open at the same time all take the first result
            self._objects.setdefault("", self._open_main(store))
        return self._objects[""]

    def _open_main(self, store: RemoteStore) -> RemoteObject:
        """Open the object, or the main member if the URL names a directory."""
        is_directory = False
        if not split_path(self._location.url)[0].endswith("/"):
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

    def _open_at(self, store: RemoteStore, *, is_directory: bool) -> RemoteObject:
        """Request the first bytes of an object and, if they take long, the last ones, too."""
        # no variable holds the path, which may have secrets: tools show variables of tracebacks
        main, unbound = (
            RemoteObject(below(store.path, MAIN_MEMBER) if is_directory else store.path, self.label)
            for _ in range(2)
        )
        has_last = not (is_directory or self._location.offset)
        start = self._location.offset
        futures = [store.begin(RangeRequest(main, Span(start, start + HEAD_NBYTES)))]
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
        main.ends = tuple(each for each in ends if each.identity == main.known)
        return main


def _kept_end(each: RemoteObject, span: Span) -> Response | None:
    """Find the kept response that contains a span."""
    start, stop = clip(span, each.size)
    for kept in each.ends:
        if kept.start <= start and stop <= kept.start + len(kept.data):
            return kept
    return None


def _part(response: Response, span: Span) -> tuple[memoryview, int]:
    """Cut a span out of a response; also return the size of its object."""
    first, data, identity, _ = response
    return memoryview(data)[span.start - first : span.stop - first], identity.size
