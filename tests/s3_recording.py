"""A second server for the bucket of the `s3_server` fixture, which records requests."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from b2nd_dask.storage import Location
from tests.servers import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.servers import S3Server


_DENIED = ("403 Forbidden", "AccessDenied")


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request that the store answered."""

    action: str
    """Name in the documentation of S3, for actions of writers and readers."""
    key: str
    condition: str | None
    """Value of If-None-Match."""
    match: str | None
    """Value of If-Match."""
    received: int
    """Bytes of the request's body."""
    sent: int
    """Bytes of the response's body."""


@dataclass
class RecordingS3:
    """The bucket, with a record of requests and with settings for faults."""

    server: S3Server
    app: Any
    url: str = ""
    endpoint: str = ""
    requests: list[S3Request] = field(default_factory=list)
    conditional: bool = True
    """Whether the server supports conditional writes."""
    refused: str = ""
    """An action whose response is ..."""
    refusal: tuple[str, str] = _DENIED
    """... this status and code; without a code the body is empty."""
    latency: float = 0.0
    """Seconds before each response."""
    before: Callable[[str], None] | None = None
    """Called with the action of each request, before the response."""
    ignore_match: bool = False
    """Ignore If-Match."""
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def storage_options(self) -> dict[str, Any]:
        """Storage options of this server; each server has its own file systems."""
        return {
            "key": "testing",
            "secret": "hunter2",
            "client_kwargs": {"endpoint_url": self.endpoint},
        }

    def reset(self) -> None:
        """Clear the record and all faults."""
        self.traffic.reset()
        self.requests.clear()
        self.conditional, self.refused, self.refusal = True, "", _DENIED
        self.latency, self.before, self.ignore_match = 0.0, None, False

    def count(self, action: str) -> int:
        """Requests of one kind since the last reset."""
        return sum(request.action == action for request in self.requests)

    def received(self, *actions: str) -> int:
        """Bytes in the bodies of requests of some kinds."""
        return sum(r.received for r in self.requests if r.action in actions)

    def sent(self, *actions: str) -> int:
        """Bytes in the bodies of responses to requests of some kinds."""
        return sum(r.sent for r in self.requests if r.action in actions)

    def keys(self, prefix: str) -> list[str]:
        """Names of the objects in the bucket."""
        listed = self.server.client.list_objects_v2(Bucket=self.server.bucket, Prefix=prefix)
        return [entry["Key"] for entry in listed.get("Contents", [])]

    def data(self, key: str) -> bytes:
        """Bytes of an object."""
        answer = self.server.client.get_object(Bucket=self.server.bucket, Key=key)
        return bytes(answer["Body"].read())

    def uploads(self) -> list[str]:
        """Keys of unfinished multipart uploads."""
        listed = self.server.client.list_multipart_uploads(Bucket=self.server.bucket)
        return [entry["Key"] for entry in listed.get("Uploads", [])]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self.traffic.request():
            return self._answer(environ, start_response)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        action = _action(environ)
        condition = environ.get("HTTP_IF_NONE_MATCH")
        if action == self.refused:
            return _refusal(start_response, *self.refusal)
        if condition is not None and not self.conditional:
            return _refusal(start_response, "501 Not Implemented", "NotImplemented")
        time.sleep(self.latency)
        if self.before is not None:
            self.before(action)
        match = environ.get("HTTP_IF_MATCH")
        if self.ignore_match:
            environ.pop("HTTP_IF_MATCH", None)
        received = int(environ.get("CONTENT_LENGTH") or 0)
        body = b"".join(self.app(environ, start_response))
        key = environ["PATH_INFO"].lstrip("/").partition("/")[2]
        self.requests.append(S3Request(action, key, condition, match, received, len(body)))
        return [body]


def _action(environ: dict[str, Any]) -> str:
    method = environ["REQUEST_METHOD"]
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    if "partNumber" in query:
        return "UploadPartCopy" if "HTTP_X_AMZ_COPY_SOURCE" in environ else "UploadPart"
    if method == "POST":
        if "uploads" in query:
            return "CreateMultipartUpload"
        return "CompleteMultipartUpload" if "uploadId" in query else "other"
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
    if method == "PUT":
        return "CopyObject" if "HTTP_X_AMZ_COPY_SOURCE" in environ else "PutObject"
    if method == "GET":
        return "ListObjects" if "list-type" in query or "prefix" in query else "GetObject"
    return "HeadObject"


def _refusal(start_response: Any, status: str, code: str) -> list[bytes]:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode() if code else b""
    start_response(status, [("Content-Type", "application/xml")])
    return [body]


@pytest.fixture(scope="session")
def _running_recording_s3(s3_server: S3Server) -> Iterator[RecordingS3]:
    state = RecordingS3(s3_server, DomainDispatcherApplication(create_backend_app), s3_server.url)
    # moto has its buckets in this process: both servers have the same
    server = make_server("127.0.0.1", 0, state, threaded=True, request_handler=MotoRequestHandler)
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="recording-s3")
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def recording_s3(_running_recording_s3: RecordingS3) -> RecordingS3:
    """A store without faults and with an empty record."""
    _running_recording_s3.reset()
    return _running_recording_s3


@pytest.fixture
def name() -> str:
    return f"{uuid.uuid4().hex}.b2nd"


@pytest.fixture
def s3(recording_s3: RecordingS3, name: str) -> Location:
    return Location.of(f"{recording_s3.url}/{name}", storage_options=recording_s3.storage_options)
