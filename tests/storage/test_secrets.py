"""Secrets of storage options in errors, whatever their type is and however a client spells them."""

from __future__ import annotations

import base64
import json
import logging
import multiprocessing
import pickle
import re
import traceback
from collections import namedtuple
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import fsspec
import pytest
from distributed import Client
from fsspec import AbstractFileSystem

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import Location, Span, staging_for
from b2nd_dask.storage.failures import OriginalError
from b2nd_dask.storage.redaction import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import HttpServer, S3Server


class Telling(AbstractFileSystem):
    """Fails with what it was given, in the spelling that the path says."""

    protocol = "telling"
    cachable = False

    def __init__(self, how: Callable[[Any], str], **given: Any) -> None:
        super().__init__()
        self.how, self.given = how, given

    def info(self, path: str, **_: object) -> dict[str, object]:
        error = OSError(f"refused {self.how(self.given)}")
        if path == "note":
            error = OSError("telling://note refused")
            error.add_note(self.how(self.given))
        raise error


@dataclass
class Account:
    """Credentials as some libraries hold them, whose `repr` shows them."""

    name: str
    password: str | bytes


SECRET = "hunter2/+é"
AS_BYTES = SECRET.encode()


Pair = namedtuple("Pair", "name password")

GIVEN: dict[str, dict[str, Any]] = {
    "text": {"secret": SECRET},
    "bytes": {"secret": AS_BYTES},
    "bytearray": {"secret": bytearray(AS_BYTES)},
    "memoryview": {"secret": memoryview(AS_BYTES)},
    "nested": {"client_kwargs": {"auth": ("user", [AS_BYTES])}},
    "object": {"account": Account("user", AS_BYTES)},
    "object in a list": {"account": [Account("user", SECRET)]},
    "named tuple": {"account": Pair("user", AS_BYTES)},
    "bearer": {"headers": {"Authorization": b"Bearer " + AS_BYTES}},
    "basic": {
        "headers": {"Authorization": "Basic " + base64.b64encode(b"user:" + AS_BYTES).decode()}
    },
}

SPELLED: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "repr of a repr": lambda given: repr(repr(given)),
    "JSON": lambda given: json.dumps(str(given)),
    "text": lambda _: SECRET,
    "bytes": lambda _: str(AS_BYTES),
    "wrongly decoded": lambda _: AS_BYTES.decode("latin-1"),
    "quoted": lambda _: f"{quote(SECRET)} {quote(SECRET, safe='')} {quote_plus(SECRET)}",
    "hexadecimal": lambda _: AS_BYTES.hex(),
    "base64": lambda _: base64.b64encode(AS_BYTES).decode(),
    "base64 with more": lambda _: base64.b64encode(b"user:" + AS_BYTES + b"@host").decode(),
    "base64 for URLs": lambda _: base64.urlsafe_b64encode(b"the user:" + AS_BYTES).decode(),
}


def raised_by(call: Callable[[], object]) -> Exception:
    """What a call raises. No variable of this function holds a secret."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the caller tells
        return error
    raise AssertionError("nothing was raised")


def identity_of(location: Location) -> object:
    return location.open().identity()


def error_of(location: Location) -> Exception:
    return raised_by(partial(identity_of, location))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    while error is not None:
        yield error
        # both, whatever a traceback would show of them
        assert error.__cause__ is None or error.__context__ in (None, error.__cause__)
        error = error.__cause__ or error.__context__


def all_of(error: Exception) -> str:
    """All that tools show of an error: pytest -l, rich and error trackers show variables, too."""
    shown = list(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    for each in chain_of(error):
        shown += [str(each), repr(each), repr(each.args), repr(vars(each))]
        shown.append(pickle.dumps(each).decode("latin-1"))
    return "\n".join(shown)


#: Of the secret in all of these, base64 at each of the three alignments.
TRACES = ["hunter2", b"hunter2".hex(), "aHVudGVy", "h1bnRlc", "odW50ZX"]


@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("given", GIVEN)
def test_secrets_are_taken_out_in_whatever_type_and_spelling(given: str, spelled: str) -> None:
    fsspec.register_implementation("telling", Telling, clobber=True)
    options = {"how": SPELLED[spelled], **GIVEN[given]}
    for path in ("message", "note"):
        location = Location.of(f"telling://{path}", storage_options=options)
        error = error_of(location)
        assert type(error) is OSError
        assert str(error).startswith(f"telling://{path}")
        shown = all_of(error)
        assert not any(trace in shown for trace in TRACES), shown
        assert "OSError: " in str(error.__cause__)
        assert "refused" in str(error.__cause__)
        assert "raise error" in shown


@pytest.mark.parametrize("shown", ["ab%2FcdEFGH%3D", "ab/cdEFGH=", "ab/cdEFGH%3D"])
def test_a_secret_that_was_given_quoted_is_taken_out_however_it_is_quoted_anew(shown: str) -> None:
    secrets = Secrets("https://host/a.b2nd?signature=ab%2fcdEFGH%3d", {})

    assert "cdEFGH" not in secrets.hide(f"the signature {shown} is too old")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://me:one@h2;u@host/a.b2nd", "me:one@h2;u"),
        ("https://host/a.b2nd#?h2;u&p=x;3d", "?h2;u&p=x;3d"),
        ("https://u:pw::h2/34@ab/a;b", "h2/34@ab/a;b"),
    ],
)
@pytest.mark.parametrize("encode", [base64.b64encode, bytes.hex], ids=["base64", "hexadecimal"])
def test_parts_of_a_url_are_taken_out_as_a_whole(
    url: str, secret: str, encode: Callable[[bytes], Any]
) -> None:
    # of their own parts each is too short to be found in there
    sent = encode(secret.encode())
    shown = Secrets(url).hide(f"sent {sent}")
    assert "[hidden]" in shown
    assert str(sent)[2:12] not in shown


class Slotted:
    """Credentials that are no attributes of a `__dict__`."""

    __slots__ = ("pair",)

    def __init__(self, *pair: str | bytes) -> None:
        self.pair = list(pair)


class Unpickled(Account):
    """Credentials that pickles leave out, and `repr`."""

    __repr__ = object.__repr__

    def __getstate__(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("kind", [Slotted, Unpickled])
def test_attributes_of_objects_are_taken_out(kind: Callable[..., object]) -> None:
    secrets = Secrets("https://host/a.b2nd", {"account": [kind("user", AS_BYTES)]})
    assert "hunter2" not in secrets.hide(f"refused {AS_BYTES!r} and {SECRET}")


class WordlessError(Exception):
    """Of a library that fails to say what it means."""

    def __str__(self) -> str:
        raise ValueError("hunter2")


def test_an_error_without_a_text_is_told_by_its_class() -> None:
    def refuse(_: object) -> str:
        raise WordlessError("hunter2")

    fsspec.register_implementation("telling", Telling, clobber=True)
    error = error_of(Location.of("telling://x", storage_options={"how": refuse}))
    assert type(error) is OSError
    assert str(error).startswith("telling://x: WordlessError: ")
    assert "hunter2" not in str(error) + repr(error.__context__)


def test_a_long_number_that_the_command_line_took_for_one_is_a_secret() -> None:
    fsspec.register_implementation("telling", Telling, clobber=True)
    options = {"how": repr, "password": 1234567890, "port": 8080}
    with pytest.raises(OSError, match="8080") as caught:
        Location.of("telling://message", storage_options=options).open().identity()
    assert "123456" not in str(caught.value)


def with_secrets(server: HttpServer) -> Location:
    url = server.put("a.b2nd", bytes(200_000))
    options = {"headers": {"Authorization": "Bearer hunter2"}}
    return Location.of(f"{url}?X-Amz-Signature=hunter2", storage_options=options)


@pytest.mark.parametrize(("status", "kind"), [(403, PermissionError), (500, OSError)])
def test_the_error_of_a_web_server_is_the_cause_without_its_secrets(
    http_server: HttpServer, status: int, kind: type[OSError]
) -> None:
    location = with_secrets(http_server)
    http_server.status = status
    error = error_of(location)
    assert type(error) is kind
    cause = error.__cause__
    assert isinstance(cause, OriginalError)
    assert f"aiohttp.client_exceptions.ClientResponseError: {status}" in str(cause)
    # where the library raised it
    assert "raise_for_status" in str(cause)
    assert "client_reqrep.py" in str(cause)
    assert "hunter2" not in all_of(error)


def test_a_server_that_is_away_is_the_first_of_all_causes() -> None:
    options = {"headers": {"Authorization": "Bearer hunter2"}}
    location = Location.of("http://127.0.0.1:9/a.b2nd?s=hunter2", storage_options=options)
    error = error_of(location)
    cause = str(error.__cause__)
    assert cause.index("ConnectionRefusedError: ") < cause.index("ClientConnectorError: Cannot con")
    assert "hunter2" not in all_of(error)


def test_the_error_of_s3_is_the_cause_without_its_secrets(s3_server: S3Server) -> None:
    options = {**s3_server.storage_options, "key": "AKIAhunter2", "secret": "hunter2hunter2"}
    location = Location.of("s3://no-such-bucket/a.b2nd", storage_options=options)
    error = error_of(location)
    assert type(error) is FileNotFoundError
    assert "No such bucket" in str(error)
    cause = str(error.__cause__)
    assert cause.index("botocore.errorfactory.NoSuchBucket: An e") < cause.index("FileNotFoundErr")
    assert "_make_api_call" in cause
    assert "hunter2" not in all_of(error)


def test_writing_keeps_the_cause_without_its_secrets(s3_server: S3Server) -> None:
    options = {**s3_server.storage_options, "secret": "hunter2hunter2"}
    location = Location.of("s3://no-such-bucket/a.b2nd", storage_options=options)
    staging = staging_for(location, sparse=False, replace=False, header_len=100)
    error = raised_by(staging.prepare)
    assert type(error) is FileNotFoundError
    assert "No such bucket" in str(error)
    assert "NoSuchBucket" in str(list(chain_of(error))[-1])
    assert "hunter2" not in all_of(error)


@pytest.mark.parametrize("url", ["bogus://host/a?s=hunter2", "sftp://user:hunter2@127.0.0.1/a"])
def test_a_file_system_that_is_not_there(url: str) -> None:
    error = error_of(Location.of(url, storage_options={"password": "hunter2"}))
    assert error.__cause__ is not None
    assert "hunter2" not in all_of(error)


def test_a_changed_object_is_told_without_the_headers_of_the_request(
    http_server: HttpServer,
) -> None:
    reader = with_secrets(http_server).open()
    reader.identity()
    http_server.put("a.b2nd", bytes(200_001))
    error = raised_by(lambda: reader.read([Span(150_000, 150_001)]))
    assert type(error) is StaleFrameError
    assert "hunter2" not in all_of(error)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_the_log_has_the_original_error_at_debug(
    http_server: HttpServer, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    location = with_secrets(http_server)
    http_server.status = 403
    with caplog.at_level(level, "b2nd_dask.storage"):
        error_of(location)
    records = [record for record in caplog.records if record.name.startswith("b2nd_dask.storage")]
    if level == logging.INFO:
        assert records == []
        return
    (record,) = records
    assert record.levelno == logging.DEBUG
    logged = record.getMessage()
    assert logged.startswith(location.label)
    assert "ClientResponseError: 403, message='Forbidden'" in logged
    assert "raise_for_status" in logged
    # nor the original itself, which handlers could show
    assert record.exc_info is None
    assert "hunter2" not in logged + repr(vars(record))


def without_lines(error: BaseException | None) -> str:
    """Its text without numbers of lines: a future that is done answers from another one."""
    return re.sub(r"line \d+", "line", str(error))


def test_errors_come_back_from_workers_with_their_cause(http_server: HttpServer) -> None:
    location = with_secrets(http_server)
    http_server.status = 403
    here = error_of(location)
    with Client(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
        there = client.submit(identity_of, location).exception()
    assert type(there) is PermissionError
    assert str(there) == str(here)
    assert without_lines(there.__cause__) == without_lines(here.__cause__)
    assert "raise_for_status" in str(there.__cause__)
    assert "hunter2" not in all_of(there)


def test_errors_come_back_from_other_processes(http_server: HttpServer) -> None:
    location = with_secrets(http_server)
    http_server.status = 403
    here = error_of(location)
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        there = pool.submit(error_of, location).result()
    assert type(there) is PermissionError
    assert str(there) == str(here)
    assert "hunter2" not in all_of(there)
