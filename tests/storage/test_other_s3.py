"""A server of S3 that lacks what Amazon's has: copies of parts, conditions, checksums of ranges."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pytest

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage import Location, Run
from b2nd_dask.storage.write import s3_join
from b2nd_dask.storage.write.s3_join import ServerJoin
from tests.storage.staged_frames import HEAD, TAIL, incompressible, make, publish, put

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.servers import S3Server

pytest_plugins = ["tests.s3_recording"]

MIB = 1 << 20
LARGE = np.random.default_rng(3).random((8, 500_000))


@pytest.fixture
def location(rclone_server: S3Server, name: str) -> Location:
    url = f"{rclone_server.url}/{name}"
    return Location.of(url, storage_options=rclone_server.storage_options)


@pytest.fixture(autouse=True)
def _not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_join, "_copies", {})


def left_over(server: S3Server) -> list[str]:
    """What is in the bucket beside frames, and uploads that were begun."""
    kept = server.client.list_objects_v2(Bucket=server.bucket).get("Contents", [])
    begun = []
    with suppress(server.client.exceptions.NoSuchUpload):  # there never was one
        begun = server.client.list_multipart_uploads(Bucket=server.bucket).get("Uploads", [])
    names = [found["Key"] for found in kept if not found["Key"].endswith(".b2nd")]
    return names + [found["Key"] for found in begun]


@pytest.mark.parametrize(
    ("values", "chunks"), [(np.arange(10.0), 5), (LARGE, (2, 500_000))], ids=["small", "large"]
)
def test_write_read_overwrite(
    rclone_server: S3Server, location: Location, name: str, values: NDArray[Any], chunks: Any
) -> None:
    where = {"storage_options": location.storage_options}
    to_b2nd(da.from_array(values, chunks=chunks), location.url, **where)
    opened = open_b2nd(location.url, **where)
    np.testing.assert_array_equal(opened[2:5], values[2:5])
    to_b2nd(da.from_array(-values), location.url, mode="w", **where)
    np.testing.assert_array_equal(from_b2nd(location.url, **where).compute(), -values)
    with pytest.raises(StaleFrameError, match=name):
        opened[5:]
    assert left_over(rclone_server) == []


def test_what_the_store_refuses_is_tried_once(
    rclone_server: S3Server, location: Location, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "b2nd_dask")
    objects = [[incompressible(7 * MIB, seed)] for seed in range(5)] + [[b"small"]]
    for again in (False, True):
        expected = publish(make(location, replace=again), objects)
        found = rclone_server.client.get_object(Bucket=rclone_server.bucket, Key=name)
        assert found["Body"].read() == expected
        assert left_over(rclone_server) == []
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert lines == [f"{location.label}: the store cannot copy parts; this process does"]


def test_a_join_that_fails_leaves_the_old_object(
    rclone_server: S3Server, location: Location, name: str
) -> None:
    rclone_server.put(name, b"old")
    staging = make(location, replace=True)
    staging.prepare()
    area = staging.area()
    data = incompressible(18 * MIB)
    run = Run(put(area, "a", data), 0, len(data) + 1)
    with pytest.raises(OSError, match=rf"{name}.*not have the written length"):
        ServerJoin(area).publish(HEAD, [run], TAIL, replace=True)
    staging.discard()
    found = rclone_server.client.get_object(Bucket=rclone_server.bucket, Key=name)
    assert found["Body"].read() == b"old"
    assert left_over(rclone_server) == []


@pytest.mark.parametrize("sign", ["?", "%3F", "*"])
def test_marks_of_patterns_in_a_name(rclone_server: S3Server, name: str, sign: str) -> None:
    where = {"storage_options": rclone_server.storage_options}
    url = f"{rclone_server.url}/{sign}{name}"
    with pytest.raises(FileNotFoundError) as caught:
        from_b2nd(url, **where)
    assert url in str(caught.value)
    if sign != "*":
        to_b2nd(np.arange(3), url, **where)
        np.testing.assert_array_equal(from_b2nd(url, **where).compute(), np.arange(3))
