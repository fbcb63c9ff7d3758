"""Responses to requests of byte ranges: what they say, and servers that say it wrongly."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import Location, Span
from b2nd_dask.storage.read.ranged import ATTEMPTS, RangeRequest, RemoteObject, size_in, token_of

if TYPE_CHECKING:
    from tests.servers import HttpServer

DATA = random.Random(13).randbytes(300_000)
#: Not among the bytes that are read first.
FAR = Span(200_000, 200_100)


def request_of(span: Span) -> RangeRequest:
    return RangeRequest(RemoteObject("a.b2nd", "a.b2nd"), span)


@pytest.mark.parametrize(
    ("header", "span", "size"),
    [
        ("bytes 0-99/1234", Span(0, 100), 1234),
        ("bytes 0-99/100", Span(0, 65536), 100),
        (" bytes 5-9/10 ", Span(5, 10), 10),
    ],
)
def test_the_size_of_an_object_from_a_range(header: str, span: Span, size: int) -> None:
    assert size_in(header, request_of(span)) == size


@pytest.mark.parametrize(("size", "start"), [(1234, 1134), (100, 0), (60, 0)])
def test_the_size_of_an_object_from_its_last_bytes(size: int, start: int) -> None:
    last = request_of(Span(-100, 0))
    assert size_in(f"bytes {start}-{size - 1}/{size}", last) == size
    with pytest.raises(OSError, match="for a request of bytes=-100"):
        size_in(f"bytes {start}-{size - 2}/{size}", last)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("", "does not report the size"),
        ("bytes 0-99/*", "does not report the size"),
        ("bytes -1-99/100", "does not report the size"),
        ("items 0-99/100", "does not report the size"),
        ("bytes 0-98/1234", "sent the range 'bytes 0-98/1234' for a request of bytes=0-99"),
        ("bytes 1-99/1234", "sent the range"),
        ("bytes 0-99/50", "sent the range"),
    ],
)
def test_ranges_that_were_not_requested(header: str, problem: str) -> None:
    with pytest.raises(OSError, match=problem):
        size_in(header, request_of(Span(0, 100)))


def test_the_size_of_an_object_that_ends_before_the_range() -> None:
    past_end = request_of(Span(1234, 1334))
    assert size_in("bytes */1234", past_end) == 1234
    with pytest.raises(OSError, match="does not report the size"):
        size_in("bytes */*", past_end)
    with pytest.raises(OSError, match="sent the range"):
        size_in("bytes */1235", past_end)


@pytest.mark.parametrize(
    ("details", "token"),
    [
        ({"ETag": '"abc"', "Last-Modified": "today"}, '"abc"'),
        ({"LastModified": "today", "size": 5}, "today"),
        ({"generation": 7, "md5Hash": "x", "mtime": 3}, "7"),
        ({"mtime": 3.5, "created": 1}, "3.5-1"),
        ({"ETag": "", "crc": "9"}, "9"),
        ({"size": 5, "name": "a"}, ""),
    ],
)
def test_the_strongest_detail_identifies_an_object(details: dict[str, object], token: str) -> None:
    assert token_of(details) == token


def test_a_response_that_breaks_off_is_requested_again(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.requests.clear()
    http_server.cut = 10
    # recent versions of aiohttp add how many bytes came
    with pytest.raises(OSError, match=r"a\.b2nd: the response broke off: ClientPayloadError: "):
        reader.read([FAR])
    assert http_server.count("GET") == ATTEMPTS
    # the state of the server has changed, not that of the object
    http_server.cut = 0
    assert reader.read([FAR]) == [DATA[FAR.start : FAR.stop]]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_has_too_much_to_do_is_asked_again(
    http_server: HttpServer, status: int
) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.requests.clear()
    http_server.status, http_server.refusals = status, 2
    assert reader.read([FAR]) == [DATA[FAR.start : FAR.stop]]
    assert [request.status for request in http_server.requests] == [status, status, 206]
    http_server.requests.clear()
    http_server.refusals = None
    with pytest.raises(OSError, match=rf"a\.b2nd: .*status {status} .*for {ATTEMPTS} requests"):
        reader.read([FAR])
    assert http_server.count("GET") == ATTEMPTS


def test_a_server_that_says_how_long_it_wants_to_be_left_alone(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.requests.clear()
    times: list[float] = []
    http_server.before = lambda _: times.append(time.monotonic())
    http_server.status, http_server.refusals = 503, 1
    http_server.headers = {"Retry-After": "2"}
    assert reader.read([FAR]) == [DATA[FAR.start : FAR.stop]]
    first, second = times
    assert second - first >= 2


@pytest.mark.parametrize("abruptly", [False, True])
def test_connections_that_the_server_closes(http_server: HttpServer, abruptly: bool) -> None:
    http_server.abruptly = abruptly
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.resets = 2
    assert reader.read([FAR]) == [DATA[FAR.start : FAR.stop]]
    # the client itself asks again where a connection was in use before
    http_server.resets = 10 * ATTEMPTS
    with pytest.raises(OSError, match=r"a\.b2nd: the server closed the connection"):
        reader.read([FAR])


@pytest.mark.parametrize("status", [400, 403, 500, 501])
def test_other_failures_are_requested_once(http_server: HttpServer, status: int) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.requests.clear()
    http_server.status = status
    with pytest.raises(OSError, match=f"{status}"):
        reader.read([FAR])
    assert http_server.count("GET") == 1


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (204, {}, "sent status 204"),
        (304, {}, "sent status 304"),
        (200, {"Content-Encoding": "gzip"}, "compresses the object"),
        (206, {"Content-Encoding": "GZIP"}, "compresses the object"),
    ],
)
def test_answers_without_bytes_of_the_object(
    http_server: HttpServer, status: int, headers: dict[str, str], problem: str
) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.status, http_server.headers = status, headers
    with pytest.raises(OSError, match=rf"a\.b2nd: the server {problem}"):
        Location.of(url).open().identity()


def test_answers_of_proxies(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.status = 203  # with an empty body
    assert Location.of(url).open().identity().size == 0
    # it is the page of the error that is compressed
    http_server.status = 416
    http_server.headers = {"Content-Encoding": "gzip", "Content-Range": "bytes */0"}
    assert Location.of(url).open().identity().size == 0


def test_a_range_of_other_bytes_is_no_data(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.status = 206
    http_server.headers = {"Content-Range": "bytes 100-199/300000"}
    with pytest.raises(OSError, match=r"a\.b2nd: the server sent the range 'bytes 100-199/300000'"):
        Location.of(url).open().identity()


def test_another_size_than_before_is_another_object(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.status = 206
    http_server.headers = {"Content-Range": f"bytes {FAR.start}-{FAR.stop - 1}/300001"}
    with pytest.raises(StaleFrameError, match=r"a\.b2nd: at byte 200000: .*open it again"):
        reader.read([FAR])


def test_an_object_that_has_become_shorter_than_the_range(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.status = 416
    http_server.headers = {"Content-Range": "bytes */1000"}
    with pytest.raises(StaleFrameError, match=r"a\.b2nd"):
        reader.read([FAR])


def test_without_an_etag_the_time_of_the_last_change_is_compared(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.hide_etag = True
    reader = Location.of(url).open()
    assert reader.read([FAR]) == [DATA[FAR.start : FAR.stop]]
    assert [request.if_match for request in http_server.requests] == [None, None]
    http_server.hide_etag = False
    with pytest.raises(StaleFrameError):
        reader.read([FAR])
