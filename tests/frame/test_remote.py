"""What opening and reading frames costs over HTTP and S3, in requests."""

from __future__ import annotations

import os
import pickle
import traceback
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import StaleFrameError, open_b2nd
from b2nd_dask.frame.array import reference_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from b2nd_dask import Frame

pytest_plugins = ["tests.s3_recording"]

LATENCY = 0.02
"""Seconds: a store in the same country."""
CUBE = np.frombuffer(np.random.default_rng(2).bytes(8 * 96**3), "f8").reshape(96, 96, 96)


@dataclass
class Place:
    """An object, or a directory, in a store with latency that counts."""

    put: Callable[[str, bytes], object]
    url: str
    server: Any
    options: dict[str, Any] | None

    def store(self, items: np.ndarray, folder: Path, **how: Any) -> None:
        """Write a frame with python-blosc2 and send it to the server."""
        path = folder / "frame.b2nd"
        blosc2.asarray(items, urlpath=str(path), mode="w", **how)
        files = [path] if path.is_file() else sorted(path.iterdir())
        for file in files:
            self.put(f"/{file.name}" if path.is_dir() else "", file.read_bytes())
        self.server.requests.clear()
        self.server.latency = LATENCY

    def open(self, slash: str = "") -> Frame:
        return open_b2nd(self.url + slash, storage_options=self.options)

    def requests(self) -> int:
        """Requests since the last call."""
        count = len(self.server.requests)
        self.server.requests.clear()
        return count


@pytest.fixture(params=["http", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    name = uuid.uuid4().hex
    if request.param == "http":
        http = request.getfixturevalue("http_server")
        return Place(lambda key, data: http.put(name + key, data), f"{http.url}/{name}", http, None)
    s3 = request.getfixturevalue("recording_s3")
    options = s3.storage_options
    return Place(lambda key, data: s3.server.put(name + key, data), f"{s3.url}/{name}", s3, options)


def test_a_small_frame_is_one_request_with_all_its_chunks(place: Place, tmp_path: Path) -> None:
    items = CUBE[:16, :16, :16]
    place.store(items, tmp_path, chunks=(8, 8, 8), blocks=(4, 4, 4))
    frame = place.open()
    np.testing.assert_array_equal(frame[...], items)
    np.testing.assert_array_equal(frame[3], items[3])
    assert place.requests() == 1


def test_opening_a_large_frame_is_two_requests(place: Place, tmp_path: Path) -> None:
    place.store(CUBE, tmp_path, chunks=(24, 24, 24), blocks=(12, 12, 12), meta={"unit": "K"})
    frame = place.open()
    assert frame.meta["unit"] == "K"
    assert place.requests() == 2


def test_a_header_of_more_than_the_first_bytes(place: Place, tmp_path: Path) -> None:
    note = "n" * 200_000
    place.store(CUBE[:24], tmp_path, chunks=(24, 24, 24), meta={"note": note})
    assert place.open().meta["note"] == note
    assert place.requests() == 3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plane_is_few_requests(place: Place, tmp_path: Path, axis: int) -> None:
    place.store(CUBE, tmp_path, chunks=(24, 24, 24), blocks=(12, 12, 12), cparams={"clevel": 0})
    frame = place.open()
    place.requests()
    # chunks of 110 kB: 16 in a row, in one request; 4 rows of 4; 16 apart
    expected = [1, 4, 16][axis]
    place.server.traffic.wanted = min(expected, 2)
    index = tuple(50 if i == axis else slice(None) for i in range(3))
    np.testing.assert_array_equal(frame[index], CUBE[index])
    assert place.requests() == expected
    assert place.server.traffic.peak >= min(expected, 2)


def test_blocks_of_a_large_chunk_are_not_a_request_each(place: Place, tmp_path: Path) -> None:
    items = CUBE.reshape(-1)[: 768 * 1024].reshape(768, 1024)
    place.store(items, tmp_path, chunks=(768, 1024), blocks=(32, 32), cparams={"clevel": 0})
    frame = place.open()
    place.requests()
    np.testing.assert_array_equal(frame[5], items[5])
    # 32 blocks in a row; what tells their places came with the frame's header.
    assert place.requests() == 1
    np.testing.assert_array_equal(frame[:, 5], items[:, 5])
    # 24 blocks of 8 kB, each 256 kB behind the one before. The first one came with the header.
    assert place.requests() == 23


def test_a_second_round_of_requests_is_for_much(place: Place, tmp_path: Path) -> None:
    items = np.concatenate([CUBE, CUBE]).reshape(-1)[: 1024 * 1024].reshape(1024, 1024)
    place.store(items, tmp_path, chunks=(512, 512), blocks=(128, 512), cparams={"clevel": 0})
    frame = place.open()
    place.requests()
    # a block in 4 of each chunk is wanted, 1.5 MB are not: of one chunk that is rather read in vain
    np.testing.assert_array_equal(frame[700, 700:800], items[700, 700:800])
    assert place.requests() == 1
    np.testing.assert_array_equal(frame[700, 400:600], items[700, 400:600])
    assert place.requests() == 4


def test_a_sparse_frame_is_one_request_and_one_for_each_chunk(place: Place, tmp_path: Path) -> None:
    place.store(CUBE, tmp_path, chunks=(48, 48, 48), contiguous=False)
    frame = place.open("/")
    assert place.requests() == 1
    place.server.traffic.reset()
    place.server.traffic.wanted = 2
    np.testing.assert_array_equal(frame[...], CUBE)
    assert place.requests() == 8
    assert place.server.traffic.peak > 1


def test_a_sparse_frame_without_a_slash(place: Place, tmp_path: Path) -> None:
    place.store(CUBE, tmp_path, chunks=(48, 48, 48), contiguous=False)
    place.open()
    assert place.requests() <= 3


def test_another_opening_sees_another_frame(place: Place, tmp_path: Path) -> None:
    place.store(CUBE, tmp_path, chunks=(24, 24, 24))
    old = place.open()
    place.store(-CUBE, tmp_path, chunks=(24, 24, 24))
    with pytest.raises(StaleFrameError, match="changed after it was opened"):
        old[...]
    np.testing.assert_array_equal(place.open()[...], -CUBE)


def test_a_frame_that_is_replaced_while_it_is_opened(place: Place, tmp_path: Path) -> None:
    place.store(CUBE, tmp_path, chunks=(24, 24, 24))

    def overwrite(_: str) -> None:
        if len(place.server.requests) == 1:
            place.server.before = None
            place.put("", os.urandom(7_000_000))

    place.server.before = overwrite
    with pytest.raises(StaleFrameError, match="changed while it was open"):
        place.open()


def test_storage_options_are_never_shown(place: Place, tmp_path: Path) -> None:
    place.options = dict(place.options or {"headers": {"Authorization": "Bearer hunter2"}})
    place.store(CUBE, tmp_path, chunks=(24, 24, 24))
    frame = place.open()
    shown = [
        repr(frame),
        frame.version,
        repr(frame.__dask_tokenize__()),
        repr(reference_of(frame).parsed),
    ]
    place.put("", b"not a frame, but long enough to be taken for one" * 9)
    calls = [lambda: frame[...], place.open, lambda: replace(place, url=f"{place.url}-no").open()]
    for call in calls:
        with pytest.raises((OSError, ValueError)) as caught:
            call()
        shown += traceback.format_exception(caught.value)
        shown += [repr(caught.value), repr(pickle.loads(pickle.dumps(caught.value)))]
    assert not [text for text in shown if "hunter2" in text]
