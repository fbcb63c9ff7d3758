"""Frames in Google's object store, by gcsfs, on an emulator of its JSON API."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest

from b2nd_dask import StaleFrameError, from_b2nd, list_staging, open_b2nd, to_b2nd, verify
from b2nd_dask.storage import Location, Run
from b2nd_dask.storage.write.object_store import StagingArea
from tests.storage.staged_frames import HEAD, TAIL, make, publish, staged_at

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

VALUES = np.random.default_rng(5).random((400, 300))


@dataclass
class Google:
    """A bucket of a server, which records what is asked."""

    storage_options: dict[str, Any]
    requests: list[str] = field(default_factory=list)

    def location(self) -> Location:
        url = f"gs://frames/{uuid.uuid4().hex}.b2nd"
        return Location.of(url, storage_options=self.storage_options)

    def data(self, location: Location) -> bytes:
        return bytes(fsspec.filesystem("gs", **self.storage_options).cat_file(location.url))

    def names(self, location: Location) -> list[str]:
        fs = fsspec.filesystem("gs", **self.storage_options)
        fs.invalidate_cache()
        own = location.url.removeprefix("gs://")
        return [path for path in fs.find("frames") if path.startswith(own)]


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    with pytest.MonkeyPatch.context() as patch:
        # else gcsfs asks by gRPC of which kind a bucket is, which no emulator answers
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        pytest.importorskip("gcsfs")
        emulator = pytest.importorskip("gcp_storage_emulator.server")
        google = Google({"token": "anon"})

        def record(handler: Any, *_: object) -> None:
            google.requests.append(f"{handler.command} {handler.path}")

        patch.setattr(emulator.RequestHandler, "log_message", record)
        server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="frames")
        server.start()
        port = server._api._httpd.server_port
        google.storage_options["endpoint_url"] = f"http://127.0.0.1:{port}"
        yield google
        server.stop()


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_frame_is_written_and_read(google: Google, contiguous: bool) -> None:
    url, options = google.location().url, google.storage_options
    written = to_b2nd(
        VALUES, url, chunks=(50, 100), contiguous=contiguous, storage_options=options, stats=True
    )
    np.testing.assert_array_equal(written.compute(), VALUES)
    frame = open_b2nd(url, storage_options=options)
    np.testing.assert_array_equal(frame[7:300:3, 99], VALUES[7:300:3, 99])
    total = from_b2nd(url, storage_options=options).sum(axis=0).compute()
    np.testing.assert_allclose(total, VALUES.sum(axis=0))
    assert verify(url, storage_options=options).ok
    assert not list_staging(url, storage_options=options)


@pytest.mark.parametrize("count", [0, 1, 30, 31, 70])
def test_the_server_joins_what_was_staged(google: Google, count: int) -> None:
    location = google.location()
    objects = [[bytes([number]) * (number + 1), b"ab"] for number in range(count)]
    google.requests.clear()
    expected = publish(make(location), objects)
    # nothing that was staged passes through this process
    assert not [asked for asked in google.requests if "alt=media" in asked]
    assert google.data(location) == expected
    assert len(google.names(location)) == 1
    composed = [
        asked for asked in google.requests if asked.startswith("POST") and "compose" in asked
    ]
    assert len(composed) == {0: 1, 1: 1, 30: 1, 31: 3, 70: 4}[count]


def test_what_is_joined_of_an_area_that_was_closed_meanwhile_does_not_stay(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = google.location()
    staging = make(location)
    staging.prepare()
    runs = [run for _ in range(40) for run in staging.append([b"ab"])]
    placement = staging.join(*staged_at(runs))
    original = StagingArea.check

    def close_behind(area: StagingArea) -> None:
        monkeypatch.setattr(StagingArea, "check", original)
        original(area)
        staging.discard()

    # as a client does that gives up, while another process commits
    monkeypatch.setattr(StagingArea, "check", close_behind)
    with pytest.raises(OSError, match=r"staged|given up"):
        staging.publish(placement, HEAD, TAIL)
    assert google.names(location) == []


def test_a_server_that_does_not_join(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    from gcsfs import GCSFileSystem

    async def refuse(*_: object) -> None:
        raise OSError("compose is not for this bucket")

    monkeypatch.setattr(GCSFileSystem, "_merge", refuse)
    monkeypatch.setattr(GCSFileSystem, "merge", fsspec.asyn.sync_wrapper(refuse))
    location = google.location()
    expected = publish(make(location), [[b"ab"], [b"c"]])
    assert google.data(location) == expected
    assert len(google.names(location)) == 1


def test_an_object_that_is_shorter_than_it_was_staged_is_not_joined(google: Google) -> None:
    location = google.location()
    staging = make(location)
    staging.prepare()
    run = staging.append([b"abc"])[0]
    placement = staging.join(*staged_at([Run(run.part, 0, 4)]))
    with pytest.raises(OSError, match="not have the written length"):
        staging.publish(placement, HEAD, TAIL)
    staging.discard()
    assert google.names(location) == []


def test_a_frame_that_is_replaced_by_one_of_the_same_size(google: Google) -> None:
    url, options = google.location().url, google.storage_options
    flat = {"cparams": {"clevel": 0}, "chunks": (50, 300), "storage_options": options}
    to_b2nd(VALUES, url, **flat)
    frame, x = open_b2nd(url, storage_options=options), from_b2nd(url, storage_options=options)
    to_b2nd(VALUES + 1, url, mode="w", **flat)
    for read in (lambda: frame[3], lambda: x.sum().compute(scheduler="threads")):
        with pytest.raises(StaleFrameError, match=r"\.b2nd"):
            read()
    with pytest.raises(FileExistsError, match=r"\.b2nd"):
        to_b2nd(VALUES, url, **flat)


def test_what_is_not_there(google: Google) -> None:
    for url in (google.location().url, "gs://nothing/none.b2nd"):
        with pytest.raises(FileNotFoundError, match=r"\.b2nd"):
            open_b2nd(url, storage_options=google.storage_options)
    with pytest.raises(OSError, match=r"gs://nothing/none\.b2nd"):
        to_b2nd(VALUES, "gs://nothing/none.b2nd", storage_options=google.storage_options)
