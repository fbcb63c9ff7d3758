"""Objects that are replaced while they are read: an error, never bytes of two states."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
import pytest
from fsspec.core import url_to_fs

from b2nd_dask import from_b2nd, seal
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import Location, Span
from b2nd_dask.storage.read.remote import MAX_GAP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.s3_recording import RecordingS3
    from tests.servers import HttpServer

pytest_plugins = ["tests.s3_recording"]

OLD = random.Random(5).randbytes(4_000_000)
NEW = OLD[::-1]
FAR = [Span(start, start + 500) for start in range(100_000, 3_900_000, 2 * MAX_GAP)]


@dataclass
class ServedObject:
    """An object, or a directory, on a server that a test can make act between two responses."""

    put: Callable[[str, bytes], None]
    server: Any
    location: Location

    def ignore_conditions(self) -> None:
        self.server.ignore_conditions = self.server.ignore_match = True

    @property
    def matches(self) -> list[str | None]:
        return [
            request.if_match if hasattr(request, "if_match") else request.match
            for request in self.server.requests
        ]


@pytest.fixture(params=["http", "s3"])
def served(request: pytest.FixtureRequest) -> ServedObject:
    name = uuid.uuid4().hex
    if request.param == "http":
        http: HttpServer = request.getfixturevalue("http_server")
        where = Location.of(f"{http.url}/{name}")
        return ServedObject(lambda member, data: void(http.put(name + member, data)), http, where)
    s3: RecordingS3 = request.getfixturevalue("recording_s3")
    where = Location.of(f"{s3.url}/{name}", storage_options=s3.storage_options)
    return ServedObject(lambda member, data: void(s3.server.put(name + member, data)), s3, where)


def at_request(number: int, act: Callable[[], None]) -> Callable[[str], None]:
    """Act before one of the next requests is answered, which may come at the same time."""
    numbers = itertools.count()

    def before(_: str) -> None:
        if next(numbers) == number:
            act()

    return before


def void(_: object) -> None:
    pass


def test_reads_ask_for_the_state_that_was_opened(served: ServedObject) -> None:
    served.put("", OLD)
    reader = served.location.open()
    token = reader.opened_identity().token
    reader.read(FAR)
    assert served.matches == [None] + [token] * len(FAR)


@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize("size", [len(NEW), 1_000_000, 100])
def test_an_object_that_was_replaced_after_it_was_opened(
    served: ServedObject, obeys: bool, size: int
) -> None:
    served.put("", OLD)
    reader = served.location.open()
    before = reader.opened_identity()
    if not obeys:
        served.ignore_conditions()
    served.put("", NEW[:size])
    for spans in ([Span(700_000, 700_010)], FAR, [Span(3_900_000, 4_000_000)]):
        with pytest.raises(StaleFrameError) as caught:
            reader.read(spans)
        assert caught.value.path == served.location.label
    assert reader.identity() != before == reader.opened_identity()


@pytest.mark.parametrize("obeys", [True, False])
def test_an_object_that_is_replaced_between_the_requests_of_one_read(
    served: ServedObject, obeys: bool
) -> None:
    served.put("", OLD)
    reader = served.location.open()
    reader.identity()
    if not obeys:
        served.ignore_conditions()
    served.server.before = at_request(2, lambda: served.put("", NEW))
    with pytest.raises(StaleFrameError):
        reader.read(FAR)


@pytest.mark.parametrize("obeys", [True, False])
def test_a_member_that_is_replaced_between_two_reads(served: ServedObject, obeys: bool) -> None:
    served.put("/chunks.b2frame", b"main")
    served.put("/00000000.chunk", OLD)
    reader = served.location.open()
    assert reader.read([Span(0, 32)], "00000000.chunk") == [OLD[:32]]
    if not obeys:
        served.ignore_conditions()
    served.put("/00000000.chunk", NEW)
    with pytest.raises(StaleFrameError, match=r"00000000\.chunk"):
        reader.read([Span(32, 64)], "00000000.chunk")


def test_a_member_that_is_replaced_during_its_first_read(served: ServedObject) -> None:
    served.put("/chunks.b2frame", b"main")
    served.put("/00000000.chunk", OLD)
    reader = served.location.open()
    reader.identity()
    served.server.before = at_request(2, lambda: served.put("/00000000.chunk", NEW))
    with pytest.raises(StaleFrameError, match=r"00000000\.chunk"):
        reader.read(FAR, "00000000.chunk")


def test_an_object_that_is_gone(served: ServedObject) -> None:
    served.put("/chunks.b2frame", b"main")
    reader = served.location.open()
    with pytest.raises(FileNotFoundError, match=r"00000000\.chunk"):
        reader.read([Span(0, 9)], "00000000.chunk")


def test_without_an_etag_the_date_tells(http_server: HttpServer) -> None:
    http_server.hide_etag = True
    reader = Location.of(http_server.put("dated.b2nd", OLD)).open()
    reader.identity()
    http_server.put("dated.b2nd", NEW)
    os.utime(http_server.folder / "dated.b2nd", (10**9, 10**9))
    with pytest.raises(StaleFrameError, match="changed while it was open"):
        reader.read(FAR)
    assert {request.if_match for request in http_server.requests} == {None}


def test_what_is_in_memory_is_of_the_state_that_was_opened(served: ServedObject) -> None:
    served.put("", OLD[:50_000])
    reader = served.location.open()
    reader.identity()
    served.put("", NEW[:50_000])
    assert reader.read([Span(20_000, 50_000)]) == [OLD[20_000:50_000]]


def test_a_copy_is_refreshed_when_the_object_is_opened_anew(http_server: HttpServer) -> None:
    location = Location.of("simplecache::" + http_server.put("copied.b2nd", OLD))
    old = location.open()
    assert old.read(FAR) == [OLD[start:stop] for start, stop in FAR]
    http_server.put("copied.b2nd", NEW)
    assert old.read(FAR) == [OLD[start:stop] for start, stop in FAR]
    new = location.open()
    assert new.read(FAR) == [NEW[start:stop] for start, stop in FAR]
    with pytest.raises(StaleFrameError, match=r"copied\.b2nd"):
        old.read(FAR)


def test_an_object_that_is_replaced_while_it_is_copied(http_server: HttpServer) -> None:
    location = Location.of("simplecache::" + http_server.put("copied2.b2nd", OLD))
    http_server.before = at_request(1, lambda: void(http_server.put("copied2.b2nd", NEW)))
    with pytest.raises(StaleFrameError, match=r"copied2\.b2nd"):
        location.open().identity()
    assert location.open().read([Span(0, 9)]) == [NEW[:9]]


def test_a_copy_of_another_size_from_an_earlier_process(
    http_server: HttpServer, tmp_path: Path
) -> None:
    url = http_server.put("kept.b2nd", OLD)
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    script = f"""
import fsspec
with fsspec.open("simplecache::{url}", **{options!r}) as file:
    file.read(1)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(list(tmp_path.iterdir())) == 1
    http_server.put("kept.b2nd", NEW[:1_000_000])
    reader = Location.of(f"simplecache::{url}", storage_options=options).open()
    assert reader.read([Span(0, 10**7)]) == [NEW[:1_000_000]]


@pytest.mark.parametrize("seals", [True, False])
@pytest.mark.parametrize("wrapper", ["", "asyncwrapper::"])
def test_a_store_that_is_asked_for_its_details(wrapper: str, seals: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"chunks": (5000,), "cparams": {"clevel": 0}, "blocks": (500,)}
    old, new = (np.full(40000, value) for value in (1.0, 2.0))
    contents = []
    for values in (old, new):
        own = tmp_path / f"{values[0]}.b2nd"
        blosc2.asarray(values, urlpath=str(own), **options)
        if seals:
            seal(own)
        contents.append(own.read_bytes())
    assert len({len(content) for content in contents}) == 1
    plain = f"memory://{tmp_path}/x.b2nd"
    url, (fs, path) = wrapper + plain, url_to_fs(plain)
    fs.pipe(path, contents[0])
    x = from_b2nd(url)
    assert x[0].compute() == 1
    fs.pipe(path, contents[1])
    for part in (x, x[30000:30001]):
        with pytest.raises(StaleFrameError):
            part.compute(scheduler="sync")
    np.testing.assert_array_equal(from_b2nd(url).compute(), new)
