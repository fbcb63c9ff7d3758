"""Bodies that do not end, or that say they are longer than the requested range."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

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


@pytest.mark.parametrize("length", ["announced", "untold", "ranges ignored"])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_no_more_is_read_than_was_asked_for(
    http_server: HttpServer, tmp_path: Path, kind: str, length: str
) -> None:
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(100, 100))
    url = http_server.put("frames/a.b2nd", path.read_bytes())
    options: dict[str, object] = {}
    if kind == "s3":
        endpoint = {"endpoint_url": http_server.url}
        options = {"key": "testing", "secret": "testing", "client_kwargs": endpoint}
        options["config_kwargs"] = {"retries": {"max_attempts": 0}}
        url = "s3://frames/a.b2nd"
    assert open_b2nd(url, storage_options=options).shape == VALUES.shape
    http_server.endless = True
    http_server.hide_size = length == "untold"
    http_server.announced = 2**31 if length != "untold" else None
    http_server.ignore_ranges = length == "ranges ignored"
    # the address space of the event loop's threads is more than the memory that they take
    result = run_limited(CODE, megabytes=400, url=url, options=options)
    if (kind, length) == ("s3", "ranges ignored"):
        # over HTTP the first bytes are enough, for as long as they are few
        assert result.startswith("OSError")
        assert "ranges" in result
        assert url in result
    else:
        assert result == pytest.approx(VALUES.sum())
