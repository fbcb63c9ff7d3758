"""Requests, misbehaving servers, and errors of remote objects."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import random
import sys
import threading
import traceback
import zipfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import fsspec
import pytest
from fsspec import AbstractFileSystem

from b2nd_dask.errors import FrameFormatError, StaleFrameError
from b2nd_dask.storage import Location, Span
from b2nd_dask.storage.read.connection import CONCURRENCY, Connection, setting
from b2nd_dask.storage.read.ranged import MAX_WHOLE
from b2nd_dask.storage.read.remote import MAX_GAP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import HttpServer, S3Server

DATA = random.Random(11).randbytes(2_000_000)


def sliced(spans: list[Span]) -> list[bytes]:
    return [DATA[start:stop] for start, stop in spans]


def test_opening_and_reading_the_first_bytes_cost_one_request(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    assert http_server.requests == []
    assert reader.identity() == reader.opened_identity()
    assert not reader.is_directory
    assert reader.read([Span(0, 4096)]) == sliced([Span(0, 4096)])
    assert [request.method for request in http_server.requests] == ["GET"]


def test_a_small_object_costs_one_request_for_good(http_server: HttpServer) -> None:
    data = DATA[:60_000]
    reader = Location.of(http_server.put("a.b2nd", data)).open()
    for start in range(0, 60_000, 7_000):
        assert reader.read([Span(start, start + 5_000)]) == [data[start : start + 5_000]]
    assert len(http_server.requests) == 1


def test_an_object_inside_a_container_costs_one_request(http_server: HttpServer) -> None:
    url = http_server.put("container.bin", DATA)
    reader = Location.of(url, offset=1_000_000).open()
    assert reader.identity().size == 1_000_000
    assert reader.read([Span(5, 60_000)]) == [DATA[1_000_005:1_060_000]]
    assert len(http_server.requests) == 1


def test_blocks_close_together_come_in_one_request(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.requests.clear()
    spans = [Span(start, start + 500) for start in range(100_000, 1_100_000, reader.max_gap)]
    assert reader.read(spans) == sliced(spans)
    assert len(http_server.requests) == 1


def test_blocks_far_apart_come_at_the_same_time_and_without_the_gaps(
    http_server: HttpServer,
) -> None:
    data = bytes(80 * MAX_GAP)
    reader = Location.of(http_server.put("a.b2nd", data)).open()
    reader.identity()
    http_server.requests.clear()
    http_server.traffic.wanted = 3
    step = MAX_GAP + 600
    spans = [Span(start, start + 500) for start in range(100_000, len(data) - 500, step)]
    assert len(spans) > setting(CONCURRENCY)
    assert reader.read(spans) == [bytes(500)] * len(spans)
    assert len(http_server.requests) == len(spans)
    assert 3 <= http_server.traffic.peak <= setting(CONCURRENCY)
    assert http_server.sent == 500 * len(spans)
    (http_server.folder / "a.b2nd").unlink()


def test_members_come_at_the_same_time_by_one_request_each(http_server: HttpServer) -> None:
    http_server.put("sparse/chunks.b2frame", b"main")
    chunks = {f"{i:08X}.chunk": DATA[i * 1000 : i * 1000 + 500 + i] for i in range(10)}
    for name, data in chunks.items():
        http_server.put(f"sparse/{name}", data)
    reader = Location.of(f"{http_server.url}/sparse/").open()
    reader.identity()
    http_server.requests.clear()
    http_server.traffic.wanted = 3
    buffers = [memoryview(bytearray(600)) for _ in chunks]
    found = reader.read_each([(name, Span(0, 600)) for name in chunks], buffers)
    assert list(found) == [(data, len(data)) for data in chunks.values()]
    assert len(http_server.requests) == len(chunks)
    assert http_server.traffic.peak >= 3


def test_a_range_is_there_before_those_behind_it(http_server: HttpServer) -> None:
    http_server.put("sparse/chunks.b2frame", b"main")
    names = [f"{i:08X}.chunk" for i in range(3)]
    for name in names:
        http_server.put(f"sparse/{name}", name.encode())
    reader = Location.of(f"{http_server.url}/sparse/").open()
    reader.identity()
    is_read = threading.Event()

    def wait(path: str) -> None:
        assert names[0] in path or is_read.wait(60)

    http_server.before = wait
    buffers = [memoryview(bytearray(20)) for _ in names]
    found = reader.read_each([(name, Span(0, 20)) for name in names], buffers)
    assert next(found) == (names[0].encode(), len(names[0]))
    is_read.set()
    assert [bytes(data) for data, _ in found] == [name.encode() for name in names[1:]]


def test_the_bytes_in_flight_are_bounded(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "b2nd", {CONCURRENCY: 8})
    http_server.put("a.b2nd", bytes(16 << 20))
    spans = [Span(start, start + 600_000) for start in range(1 << 20, 15 << 20, 800_000)]
    reader = Location.of(f"{http_server.url}/a.b2nd").open()
    reader.identity()
    http_server.reset()
    http_server.latency, http_server.traffic.wanted = 0.02, 3
    assert reader.read(spans) == [bytes(600_000)] * len(spans)
    assert len(http_server.requests) == len(spans)
    assert 3 <= http_server.traffic.peak <= 4
    # larger than all that may be in flight
    assert reader.read([Span(1 << 20, 9 << 20)]) == [bytes(8 << 20)]
    (http_server.folder / "a.b2nd").unlink()


def test_chunks_in_any_order_of_the_file_arrive_one_by_one(http_server: HttpServer) -> None:
    """A parallel write leaves them so."""
    step = 4 * MAX_GAP
    data = random.Random(5).randbytes(40 * step)
    reader = Location.of(http_server.put("a.b2nd", data)).open()
    reader.identity()
    http_server.reset()
    items = [("", Span(at, at + 500)) for at in range(38 * step, step, -step)]
    found = reader.read_each(items, [memoryview(b"")] * len(items))
    for (_, (start, stop)), (part, size) in zip(items, found, strict=True):
        assert (part, size) == (data[start:stop], len(data))
    # requested in the order of the items
    asked = [int(str(each.range).split("=")[1].split("-")[0]) for each in http_server.requests]
    assert asked[0] > asked[-1]
    (http_server.folder / "a.b2nd").unlink()


def test_a_read_that_is_given_up_sends_no_more(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "b2nd", {CONCURRENCY: 2})
    reader = Location.of(http_server.put("a.b2nd", bytes(100 * MAX_GAP))).open()
    reader.identity()
    http_server.reset()
    http_server.latency = 0.05
    # the first range is there already
    items = [("", Span(at, at + 9)) for at in range(0, 90 * MAX_GAP, 2 * MAX_GAP)]
    found = reader.read_each(items, [memoryview(b"")] * len(items))
    assert next(found) == (bytes(9), 100 * MAX_GAP)
    found.close()
    reader.read([Span(99 * MAX_GAP, 99 * MAX_GAP + 9)])
    # which would have waited for all of them
    assert len(http_server.requests) < len(items) / 2
    (http_server.folder / "a.b2nd").unlink()


@pytest.mark.parametrize(("slash", "requests"), [("", 3), ("/", 1), ("/?signature=a/b", 1)])
def test_a_directory_of_a_web_server(http_server: HttpServer, slash: str, requests: int) -> None:
    http_server.put("sparse/chunks.b2frame", b"main")
    reader = Location.of(f"{http_server.url}/sparse{slash}").open()
    assert reader.is_directory
    assert reader.read([Span(0, 9)]) == [b"main"]
    assert http_server.requests[0].path.partition("?")[2] == slash.partition("?")[2]
    # Without a slash: the redirect, the listing, and the main member.
    assert len(http_server.requests) == requests
    with pytest.raises(FileNotFoundError, match=r"[a-z]/FFFFFFFF\.chunk"):
        reader.read([Span(0, 9)], "FFFFFFFF.chunk")


def test_an_ordinary_directory_is_no_frame(http_server: HttpServer, s3_server: S3Server) -> None:
    http_server.put("ordinary/readme", b"hello")
    s3_server.put("ordinary/readme", b"hello")
    for url, options in (
        (f"{http_server.url}/ordinary", None),
        (f"{s3_server.url}/ordinary", s3_server.storage_options),
    ):
        reader = Location.of(url, storage_options=options).open()
        with pytest.raises(FrameFormatError, match=r"chunks\.b2frame") as caught:
            reader.identity()
        assert url in str(caught.value)


def test_a_directory_that_came_after_its_parent_was_listed(s3_server: S3Server) -> None:
    s3_server.put("first", b"hello")
    fsspec.filesystem("s3", **s3_server.storage_options).ls("frames")
    s3_server.put("later/readme", b"hello")
    reader = Location.of(f"{s3_server.url}/later", storage_options=s3_server.storage_options).open()
    with pytest.raises(FrameFormatError, match=r"chunks\.b2frame"):
        reader.identity()


def test_a_server_that_ignores_ranges_gives_right_data(http_server: HttpServer) -> None:
    http_server.ignore_ranges = True
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    first = [Span(1_000_000, 1_000_500), Span(500, 600)]
    assert reader.read(first) == sliced(first)
    http_server.reset()
    http_server.ignore_ranges = True
    spans = [Span(start, start + 500) for start in range(100, 1_900_000, 2 * MAX_GAP)]
    assert reader.read(spans) == sliced(spans)
    assert http_server.count("GET") == 1  # not the whole object for each span


@pytest.mark.parametrize("size", [500, 5000])
def test_a_span_past_the_end_of_an_object_that_comes_whole(
    http_server: HttpServer, size: int
) -> None:
    http_server.ignore_ranges = True
    reader = Location.of(http_server.put("a.b2nd", DATA[:size])).open()
    spans = [Span(300, 10_000), Span(600, 700)]
    assert reader.read(spans) == [DATA[300:size], DATA[:size][600:700]]


def test_a_large_object_is_not_fetched_whole_time_and_again(http_server: HttpServer) -> None:
    http_server.ignore_ranges = True
    reader = Location.of(http_server.put("large.b2nd", bytes(MAX_WHOLE + 1))).open()
    for _ in range(2):
        with pytest.raises(OSError, match=r"ignores byte ranges.*simplecache::"):
            reader.read([Span(MAX_WHOLE - 5, MAX_WHOLE + 1)])
    assert http_server.count("GET") == 1
    (http_server.folder / "large.b2nd").unlink()


def test_an_object_of_unknown_size(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.hide_size = http_server.ignore_ranges = True
    with pytest.raises(OSError, match=r"a\.b2nd: the server does not report the size"):
        Location.of(url).open().read([Span(0, 10)])


def test_a_size_that_only_the_range_tells(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.hide_size = True
    assert Location.of(url).open().identity().size == len(DATA)


def test_an_answer_that_breaks_off_is_asked_for_again(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.cut = 10

    def mend(_: str) -> None:
        if len(http_server.requests) > 1:
            http_server.cut = 0

    http_server.before = mend
    spans = [Span(100_000, 200_000)]
    assert reader.read(spans) == sliced(spans)


def test_answers_that_always_break_off(http_server: HttpServer) -> None:
    reader = Location.of(http_server.put("a.b2nd", DATA)).open()
    reader.identity()
    http_server.cut = 10
    with pytest.raises(OSError, match=r"a\.b2nd: the response broke off") as caught:
        reader.read([Span(100_000, 200_000)])
    assert not isinstance(caught.value, StaleFrameError)


@pytest.mark.parametrize("query", ["", "?X-Amz-Signature=hunter2%2Fhunter2"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionError), (403, PermissionError), (404, FileNotFoundError), (500, OSError)],
)
def test_failures_hold_no_secrets(
    http_server: HttpServer, query: str, status: int, kind: type[OSError]
) -> None:
    url = http_server.put("a.b2nd", DATA)
    options = {"headers": {"Authorization": "Bearer hunter2"}}
    location = Location.of(url + query, storage_options=options)
    opened = location.open()
    opened.identity()
    http_server.status = status
    for call in (location.open().identity, lambda: opened.read([Span(10**6, 10**6 + 9)])):
        with pytest.raises(OSError, match=r"a\.b2nd") as caught:
            call()
        assert type(caught.value) is kind
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert "hunter2" not in shown
        assert url in shown


class Talkative(AbstractFileSystem):
    """Fails in the way that the URL says; the message or its context holds a secret."""

    protocol = "talkative"

    def info(self, path: str, **_: object) -> dict[str, object]:
        if path == "plain":
            raise OSError("the disk is full")
        if "quoting" in path:
            raise OSError(errno.EIO, f"no bucket {path!r}, {unquote(path)}")
        if path == "foreign":
            raise ArithmeticError("a tree of its own")
        if path == "message":
            raise OSError("cannot reach https://user:hunter2@host/a")
        failure = OSError("no response")
        leak = RuntimeError("no response from https://host/a?sig=hunter2")
        if path == "cause":
            failure.__cause__ = leak
        else:
            failure.__context__ = leak
        raise failure


@pytest.mark.parametrize("where", ["message", "cause", "context"])
def test_secrets_in_messages_and_contexts_are_taken_out(where: str) -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    with pytest.raises(OSError, match=f"talkative://{where}") as caught:
        Location.of(f"talkative://{where}").open().identity()
    shown = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert "hunter2" not in f"{shown} {shown[0]}"


def test_parts_of_the_url_are_taken_out_of_messages() -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    for url in ("talkative://AKIA:1234%405678@bucket/quoting", "talkative://quoting?s=12345678"):
        with pytest.raises(OSError, match="no bucket") as caught:
            Location.of(url).open().identity()
        assert "5678" not in f"{caught.value} {caught.value!r}"
        assert caught.value.errno == errno.EIO


def test_a_short_part_of_a_password_is_taken_out() -> None:
    with pytest.raises(OSError, match=r"^https://\[hidden\]: ") as caught:
        Location.of("https://u:12@834/5@127.0.0.1/x").open().identity()
    assert "834" not in str(caught.value)


def test_values_of_options_are_taken_out_of_messages(s3_server: S3Server) -> None:
    wrong = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "hunter2notaurl"}}
    with pytest.raises((OSError, ValueError), match=r"^s3://bucket/a\.b2nd: ") as caught:
        Location.of("s3://bucket/a.b2nd", storage_options=wrong).open().identity()
    assert "hunter2" not in f"{caught.value} {caught.value!r}"
    url, options = "s3://AKhunter2:12345678@bucket/a.b2nd", s3_server.storage_options
    secret = Location.of(url, storage_options=options)
    with pytest.raises(OSError, match="Invalid bucket name") as caught_other:
        secret.open().identity()
    assert "hunter2" not in f"{caught_other.value}"
    assert "12345678" not in f"{caught_other.value}"


def test_errors_of_other_trees_are_named_os_errors() -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    with pytest.raises(OSError, match=r"^talkative://foreign: ArithmeticError: a tree of its own$"):
        Location.of("talkative://foreign").open().identity()
    with pytest.raises(ValueError, match=r"^bogus://x: .*[Pp]rotocol"):
        Location.of("bogus://x").open().identity()


def test_s3_without_credentials_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(OSError, match=r"^s3://b/x: .*storage_options=\{'anon': True\}"):
        Location.of("s3://b/x", storage_options={"skip_instance_cache": True}).open().identity()


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (206, {"Content-Range": "bytes 0-65535/" + "9" * 5000}, "does not report the size"),
        (416, {"Content-Range": "bytes */" + "9" * 5000}, "does not report the size"),
        (302, {"Location": "file:///etc/passwd"}, "NonHttpUrlRedirect"),
    ],
)
def test_answers_that_mislead(
    http_server: HttpServer, status: int, headers: dict[str, str], problem: str
) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.status, http_server.headers = status, headers
    with pytest.raises(OSError, match=rf"^{url}: .*{problem}"):
        Location.of(url).open().identity()


def test_a_server_without_ranges_is_named(http_server: HttpServer) -> None:
    url = http_server.put("big.b2nd", b"x" * (17 << 20))
    reader = Location.of(url).open()
    http_server.ignore_ranges = True
    with pytest.raises(OSError, match=rf"^{url}: the server ignores byte ranges"):
        reader.read([Span(16 << 20, (16 << 20) + 1000)])


def test_other_errors_name_the_object() -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    with pytest.raises(OSError, match=r"^talkative://plain: the disk is full$"):
        Location.of("talkative://plain").open().identity()


def test_a_server_that_is_away_is_not_a_missing_object(http_server: HttpServer) -> None:
    url = "http://127.0.0.1:9/a.b2nd"  # the discard service; no test machine runs it
    with pytest.raises(OSError, match=r"^http://127\.0\.0\.1:9/a\.b2nd: ") as caught:
        Location.of(url).open().identity()
    assert not isinstance(caught.value, FileNotFoundError)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_leaves_the_connections_of_its_parent_alone(
    http_server: HttpServer,
) -> None:
    # Options of its own give a file system that only this reader refers to: the child drops it.
    options = {"headers": {"X-Test": "fork"}}
    url = http_server.put("a.b2nd", DATA)
    reader = Location.of(url, storage_options=options).open()
    reader.read([Span(100_000, 100_010)])

    def drop() -> None:
        reader.close()
        gc.collect()  # the file systems of fsspec refer to themselves

    child = multiprocessing.get_context("fork").Process(target=drop)
    child.start()
    child.join(300)
    assert child.exitcode == 0
    spans = [Span(200_000, 200_010)]
    assert reader.read(spans) == sliced(spans)  # would wait for ever


def test_an_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        Location.of("nonsense://a.b2nd").open().identity()


def test_two_colons_in_a_name_are_quoted(http_server: HttpServer) -> None:
    (http_server.folder / "a::b.b2nd").write_bytes(b"data")
    url = f"{http_server.url}/a::b.b2nd"
    with pytest.raises(ValueError, match=r"a::b\.b2nd: .* write %3A%3A in a name"):
        Location.of(url).open().read([Span(0, 4)])
    (found,) = Location.of(url.replace("::", "%3A%3A")).open().read([Span(0, 4)])
    assert bytes(found) == b"data"


def test_a_listing_made_earlier_hides_no_change(s3_server: S3Server) -> None:
    url = s3_server.put("listed/a.b2nd", b"old")
    location = Location.of(url, storage_options=s3_server.storage_options)
    before = location.open().identity()
    fs = fsspec.filesystem("s3", **s3_server.storage_options)
    fs.ls("frames/listed")
    s3_server.put("listed/a.b2nd", b"new")
    assert location.open().identity() != before
    fs.ls("frames/listed")
    s3_server.put("listed/b.b2nd", b"data")
    other = f"{s3_server.url}/listed/b.b2nd"
    assert Location.of(other, storage_options=s3_server.storage_options).open().identity().size == 4


def test_a_bucket_that_does_not_exist(s3_server: S3Server) -> None:
    location = Location.of("s3://nowhere/a.b2nd", storage_options=s3_server.storage_options)
    with pytest.raises(FileNotFoundError, match=r"s3://nowhere/a\.b2nd"):
        location.open().identity()


def test_an_archive_on_a_web_server(http_server: HttpServer, tmp_path: Path) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("folder/a.b2nd", DATA)
    url = http_server.put("archive.zip", archive.read_bytes())
    reader = Location.of(f"zip://folder/a.b2nd::{url}").open()
    spans = [Span(1_000_000, 1_000_500), Span(500, 600)]
    assert reader.read(spans) == sliced(spans)


def test_an_object_cached_whole_is_fetched_once_for_all_threads(http_server: HttpServer) -> None:
    url = http_server.put("cached.b2nd", DATA)
    reader = Location.of(f"simplecache::{url}").open()
    reader.identity()
    http_server.latency = 0.1
    spans = [Span(1_000_000, 1_000_500), Span(500, 600)]
    with ThreadPoolExecutor(8) as threads:
        for parts in threads.map(reader.read, [spans] * 16):
            assert parts == sliced(spans)
    assert http_server.count("GET") == 1


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forks_while_other_threads_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    interval = sys.getswitchinterval()
    done = threading.Event()

    def connect_on_and_on() -> None:
        private = Location.of("memory://a", storage_options={"skip_instance_cache": True})
        connections: deque[Connection] = deque(maxlen=2000)
        while not done.is_set():
            connections.append(Connection.of(private))

    with ThreadPoolExecutor(2) as threads:
        sys.setswitchinterval(1e-5)
        try:
            running = [threads.submit(connect_on_and_on) for _ in range(2)]
            for _ in range(15):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
        finally:
            done.set()
            sys.setswitchinterval(interval)
        for each in running:
            each.result()
    assert failures == []


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "ü", "a+b", "a&b=c", "a[1]"])
def test_names_with_characters_that_urls_use(http_server: HttpServer, name: str) -> None:
    http_server.put(f"names/{name}.b2nd", DATA)
    reader = Location.of(f"{http_server.url}/names/{quote(name)}.b2nd").open()
    assert reader.read([Span(500_000, 500_010)]) == sliced([Span(500_000, 500_010)])


def test_a_redirect_to_another_host(http_server: HttpServer) -> None:
    there = http_server.put("moved.b2nd", DATA).replace("127.0.0.1", "localhost")

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", there if "moved" in self.path else self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        reader = Location.of(f"{url}/moved.b2nd").open()
        assert reader.read([Span(500_000, 500_010)]) == sliced([Span(500_000, 500_010)])
        with pytest.raises(OSError, match=r"TooManyRedirects.*endless\.b2nd"):
            Location.of(f"{url}/endless.b2nd").open().identity()
        server.shutdown()
