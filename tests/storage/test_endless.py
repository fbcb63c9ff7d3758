"""Bodies that do not end, or that say they are longer than the requested range."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest
from fsspec.config import conf

from b2nd_dask import open_b2nd, to_b2nd
from tests.limited import run_limited

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import HttpServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")

VALUES = np.random.default_rng(3).normal(size=(600, 100))

CODE = """
import aiobotocore.session, s3fs, aiohttp
# the clients are loaded, and their threads begun, before memory is limited
answer = None
try:
    frame = open_b2nd(url, storage_options=options)
    answer = float(frame[...].sum())
except OSError as error:
    answer = f"{type(error).__name__}: {error}"
"""


def reached(
    server: HttpServer, kind: str, path: Path, folder: str = "frames/"
) -> tuple[str, dict[str, Any]]:
    """Put a file onto a server; its URL and storage options."""
    url = server.put(folder + path.name, path.read_bytes())
    if kind == "http":
        return url, {}
    options: dict[str, Any] = {"key": "testing", "secret": "testing"}
    options["client_kwargs"] = {"endpoint_url": server.url}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    return f"s3://{folder}{path.name}", options


@pytest.mark.parametrize("length", ["announced", "untold", "ranges ignored"])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_no_more_is_read_than_was_asked_for(
    http_server: HttpServer, tmp_path: Path, kind: str, length: str
) -> None:
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(100, 100))
    url, options = reached(http_server, kind, path)
    assert open_b2nd(url, storage_options=options).shape == VALUES.shape
    http_server.endless = True
    http_server.hide_size = length == "untold"
    http_server.announced = 2**31 if length != "untold" else None
    http_server.ignore_ranges = length == "ranges ignored"
    # the address space of the event loop's threads is more than the memory that they take
    result = run_limited(CODE, megabytes=400, url=url, options=options)
    # if ranges are ignored, the first bytes are enough, for as long as they are few
    assert result == pytest.approx(VALUES.sum())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_slow_server_is_waited_for_as_long_as_its_bytes_may_take(
    http_server: HttpServer, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(600, 100))
    url, options = reached(http_server, kind, path)
    frame = open_b2nd(url, storage_options=options)
    size = path.stat().st_size
    # twice as fast as it has to be, for longer than the pause
    http_server.speed = size // 2
    monkeypatch.setitem(conf, "b2nd", {"low_speed_limit": str(size // 4), "low_speed_time": "0.5"})
    np.testing.assert_array_equal(frame[...], VALUES)
    http_server.speed = size // 20
    http_server.requests.clear()
    with pytest.raises(TimeoutError, match=r"a\.b2nd.*took more than .* low_speed_time \(0\.5 s"):
        frame[...]
    # ahead, and when that had failed
    assert http_server.count("GET") == 2


def test_a_server_that_sends_nothing(
    http_server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(600, 100))
    url, _ = reached(http_server, "http", path)
    http_server.latency = 5
    monkeypatch.setitem(conf, "b2nd", {"low_speed_limit": 1e6, "low_speed_time": 0.5})
    with pytest.raises(TimeoutError, match="low_speed_time"):
        open_b2nd(url)


def test_no_other_time_ends_a_response(
    http_server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # that of aiohttp, 5 minutes, made shorter
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=1))
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(600, 100))
    url, _ = reached(http_server, "http", path)
    frame = open_b2nd(url, storage_options={"skip_instance_cache": True})
    http_server.speed = path.stat().st_size // 2
    np.testing.assert_array_equal(frame[...], VALUES)


@pytest.mark.parametrize("value", [0, -5, None, "10kB", float("nan")])
def test_settings_that_mean_nothing(
    http_server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    to_b2nd(VALUES, tmp_path / "a.b2nd")
    url, _ = reached(http_server, "http", tmp_path / "a.b2nd")
    monkeypatch.setitem(conf, "b2nd", {"low_speed_limit": value})
    with pytest.raises(ValueError, match=r"low_speed_limit=.* is not a positive number"):
        open_b2nd(url)


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_requests_that_wait_for_others_have_more_time(
    http_server: HttpServer, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 34 requests over the 10 connections of a client of S3: the last wait for 3 others
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=(600, 3), contiguous=False)
    for member in (tmp_path / "a.b2nd").iterdir():
        url, options = reached(http_server, kind, member, "sparse/a.b2nd/")
    frame = open_b2nd(url.rpartition("/")[0] + "/", storage_options=options)
    http_server.requests.clear()
    http_server.latency = 1.5
    monkeypatch.setitem(conf, "b2nd", {"low_speed_limit": 1e9, "low_speed_time": 5.0})
    np.testing.assert_array_equal(frame[...], VALUES)
    # the client of S3 may ask again on a busy machine; without more time all of the last four are
    assert 34 <= http_server.count("GET") < 38


def test_servers_that_ignore_ranges_have_time_for_all_that_they_send(
    http_server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=(600, 100), blocks=(60, 100))
    url, _ = reached(http_server, "http", tmp_path / "a.b2nd")
    frame = open_b2nd(url)
    size = (tmp_path / "a.b2nd").stat().st_size
    http_server.ignore_ranges, http_server.speed = True, size // 2
    monkeypatch.setitem(conf, "b2nd", {"low_speed_limit": size // 4, "low_speed_time": 1})
    np.testing.assert_array_equal(frame[-3:], VALUES[-3:])
