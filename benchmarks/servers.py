"""Servers with a latency, each in its own process.

`python -m benchmarks.servers KIND FOLDER SECONDS` starts one. It prints its endpoint, and ends when
its standard input ends.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

Kind = Literal["http", "s3"]

#: Default latency of each response, in seconds.
LATENCY = 0.02
BUCKET = "bench"
KEY, SECRET = "testing", "testing"
REGION = "us-east-1"
#: Path for the number of requests since its last request; without latency and not counted.
COUNTER = "/-/requests"


@dataclass(frozen=True)
class Server:
    """A server, as seen by its parent process."""

    endpoint: str
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, kind: Kind, folder: Path, latency: float = LATENCY) -> Server:
        arguments = [kind, str(folder), str(latency)]
        command = [sys.executable, "-m", "benchmarks.servers", *arguments]
        # the pipe to its input closes at any end of this process
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"the {kind} server did not start")
        return cls(endpoint, process)

    def requests(self) -> dict[str, float]:
        """Number of requests since the last call."""
        with urlopen(f"{self.endpoint}{COUNTER}") as answer:
            return {"requests": float(answer.read())}


class _Count:
    """Requests, counted by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0

    def add(self) -> None:
        with self._lock:
            self._value += 1

    def take(self) -> bytes:
        with self._lock:
            value, self._value = self._value, 0
        return str(value).encode()


def _http_handler(folder: Path, count: _Count, latency: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # headers and body are separate; the delayed ACK costs 40 ms
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            if self.path == COUNTER:
                self._answer(HTTPStatus.OK, {}, count.take())
            else:
                self._serve()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

        def _serve(self) -> None:
            count.add()
            time.sleep(latency)
            target = folder / self.path.lstrip("/")
            if not target.is_file():
                self._answer(HTTPStatus.NOT_FOUND, {}, b"")
                return
            size = target.stat().st_size
            start, stop = _range(self.headers.get("Range"), size)
            headers = {"Accept-Ranges": "bytes", "ETag": f'"{target.stat().st_mtime_ns:x}-{size}"'}
            status = HTTPStatus.OK
            if self.headers.get("Range"):
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
                status = HTTPStatus.PARTIAL_CONTENT
            if self.command == "HEAD":
                self._answer(status, headers, b"", stop - start)
                return
            with target.open("rb") as file:
                file.seek(start)
                self._answer(status, headers, file.read(stop - start))

        def _answer(
            self, status: HTTPStatus, headers: dict[str, str], body: bytes, size: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Start and stop of `bytes=first-last`, `bytes=first-` or `bytes=-count`."""
    first, _, last = (header or "bytes=0-").removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size


def _serve_http(folder: Path, count: _Count, latency: float) -> str:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), _http_handler(folder, count, latency))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def _serve_s3(folder: Path, count: _Count, latency: float) -> str:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    # a line for each request otherwise
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = DomainDispatcherApplication(create_backend_app)
    is_filled = threading.Event()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNTER:
            start_response("200 OK", [])
            return [count.take()]
        if is_filled.is_set():
            count.add()
            time.sleep(latency)
        answered: Iterable[bytes] = store(environ, start_response)
        return answered

    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    _fill(endpoint, folder)
    is_filled.set()
    return endpoint


def _fill(endpoint: str, folder: Path) -> None:
    """Every file below the folder as an object of its relative path."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            key = path.relative_to(folder).as_posix()
            client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())


def main(kind: Kind, folder: Path, latency: float) -> None:
    serve = {"http": _serve_http, "s3": _serve_s3}[kind]
    print(serve(folder, _Count(), latency), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))  # type: ignore[arg-type]
