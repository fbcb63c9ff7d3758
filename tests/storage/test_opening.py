"""How many rounds of requests an open takes, and what two responses at the same time may bring."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from b2nd_dask import open_b2nd, to_b2nd
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import Location, Secrets, Span
from b2nd_dask.storage.read.ranged import RangeRequest, RemoteObject
from b2nd_dask.storage.read.ranged_stores import AnyRanges

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import HttpServer, S3Server

DATA = random.Random(17).randbytes(400_000)
NEW = random.Random(18).randbytes(400_000)
VALUES = np.random.default_rng(3).random((300, 400))
LAST = Span(390_000, 400_000)


@pytest.mark.usefixtures("far_stores")
def test_a_frame_of_a_far_store_is_opened_by_two_requests_at_once(
    http_server: HttpServer, tmp_path: Path
) -> None:
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=(30, 400))
    url = http_server.put("far.b2nd", (tmp_path / "a.b2nd").read_bytes())
    http_server.traffic.wanted = 2
    frame = open_b2nd(url)
    assert sorted(str(request.range) for request in http_server.requests) == [
        "bytes=-65536",
        "bytes=0-65535",
    ]
    np.testing.assert_array_equal(frame[...], VALUES)


@pytest.mark.usefixtures("far_stores")
def test_a_frame_in_s3_that_is_far(s3_server: S3Server, tmp_path: Path) -> None:
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=(30, 400))
    url = s3_server.put("far.b2nd", (tmp_path / "a.b2nd").read_bytes())
    frame = open_b2nd(url, storage_options=s3_server.storage_options)
    np.testing.assert_array_equal(frame[...], VALUES)


@pytest.mark.usefixtures("far_stores")
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 400_000])
@pytest.mark.parametrize("ignore_ranges", [False, True])
def test_first_and_last_bytes_of_objects_of_any_size(
    http_server: HttpServer, size: int, ignore_ranges: bool
) -> None:
    http_server.ignore_ranges = ignore_ranges
    reader = Location.of(http_server.put("a.b2nd", DATA[:size])).open()
    spans = [Span(0, 100), Span(max(0, size - 70_000), size), Span(max(0, size - 9), size)]
    assert reader.read(spans) == [DATA[:size][start:stop] for start, stop in spans]


@pytest.mark.usefixtures("far_stores")
@pytest.mark.parametrize("number", [0, 1])
def test_an_object_that_is_replaced_while_it_is_opened(
    http_server: HttpServer, number: int
) -> None:
    url = http_server.put("swapped.bin", DATA)
    seen: list[str] = []

    def replace(path: str) -> None:
        seen.append(path)
        if len(seen) == number + 1:
            http_server.put("swapped.bin", NEW)

    http_server.before = replace
    reader = Location.of(url).open()
    (first,) = reader.read([Span(0, 100)])
    state = DATA if first == DATA[:100] else NEW
    try:
        (last,) = reader.read([LAST])
    except StaleFrameError:
        assert state == DATA
    else:
        assert (first, last) == (state[:100], state[LAST.start : LAST.stop])


@pytest.mark.usefixtures("far_stores")
def test_a_server_that_refuses_the_last_bytes(http_server: HttpServer) -> None:
    url = http_server.put("a.b2nd", DATA)
    http_server.refuse_last = True
    reader = Location.of(url).open()
    assert reader.read([LAST]) == [DATA[LAST.start : LAST.stop]]


def test_looks_at_an_object_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/shared/a.b2nd", DATA)
    fs = AsyncFileSystemWrapper(memory)
    looks = 0
    info = fs._info

    async def counted(path: str) -> dict[str, object]:
        nonlocal looks
        looks += 1
        found: dict[str, object] = await info(path)
        return found

    monkeypatch.setattr(fs, "_info", counted)
    store = AnyRanges(fs, "/shared/a.b2nd", Secrets("memory://shared/a.b2nd"), "a.b2nd")
    known = RangeRequest(RemoteObject("/shared/a.b2nd", "a.b2nd"), Span(0, len(DATA)))
    store.begin(known).result()
    looks = 0
    requests = [known._replace(span=Span(at, at + 10)) for at in range(0, 2000, 10)]
    with store.get(requests) as found:
        data = [each.data for each in found]
    assert data == [DATA[at : at + 10] for at in range(0, 2000, 10)]
    assert looks <= len(requests) / 2
    memory.pipe_file("/shared/a.b2nd", NEW)
    with pytest.raises(StaleFrameError), store.get(requests) as found:
        list(found)
