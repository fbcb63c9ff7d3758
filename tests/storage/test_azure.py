"""Frames in Azure's object store, on Azurite, the server that Microsoft publishes for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.array as da
import fsspec
import numpy as np
import pytest

from b2nd_dask import StaleFrameError, from_b2nd, list_staging, open_b2nd, to_b2nd, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    # of adlfs, which passes large bodies to aiohttp as bytes
    pytest.mark.filterwarnings("ignore:Sending a large body directly"),
]

#: Of Azurite, known to everybody.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VALUES = np.random.default_rng(5).random((400, 3000))


@dataclass(frozen=True)
class Azure:
    """A container of a server."""

    url: str
    storage_options: dict[str, Any]


def options_of(port: int, key: str = KEY) -> dict[str, Any]:
    endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
    return {"connection_string": account + endpoint}


def command_of(folder: Path) -> str:
    """Azurite's command: where it is installed, else installed by npm for this run."""
    found = shutil.which("azurite-blob")
    if found is None:
        npm = shutil.which("npm") or pytest.skip("there is neither azurite-blob nor npm")
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), "azurite"]
        try:
            subprocess.run(install, capture_output=True, timeout=300, check=True)
        except subprocess.SubprocessError:
            pytest.skip("npm does not install azurite")
        found = str(folder / "node_modules" / ".bin" / "azurite-blob")
    return found


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    pytest.importorskip("adlfs")
    folder = tmp_path_factory.mktemp("azurite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [
        command_of(folder), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck",
        "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=folder) as server:
        for _ in range(600):
            time.sleep(0.1)
            with socket.socket() as client:
                if not client.connect_ex(("127.0.0.1", port)):
                    break
        yield port
        server.terminate()


@pytest.fixture(scope="module")
def azure(port: int) -> Azure:
    options = options_of(port)
    fsspec.filesystem("az", **options).mkdir("frames")
    return Azure("az://frames", options)


@pytest.mark.usefixtures("far_stores")
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_frame_is_written_and_read(azure: Azure, contiguous: bool) -> None:
    url, options = f"{azure.url}/{contiguous}.b2nd", azure.storage_options
    x = da.from_array(VALUES, chunks=(50, 1000))
    written = to_b2nd(x, url, contiguous=contiguous, storage_options=options, stats=True)
    np.testing.assert_array_equal(written.compute(), VALUES)
    frame = open_b2nd(url, storage_options=options)
    np.testing.assert_array_equal(frame[7:300:3, 999], VALUES[7:300:3, 999])
    np.testing.assert_allclose(
        from_b2nd(url, storage_options=options).mean(axis=0).compute(), VALUES.mean(axis=0)
    )
    assert verify(url, storage_options=options).ok
    assert not list_staging(url, storage_options=options)


def test_a_frame_of_more_than_one_upload(azure: Azure) -> None:
    url, options = f"{azure.url}/large.b2nd", azure.storage_options
    x = da.random.default_rng(1).random((16, 1 << 20), chunks=(1, 1 << 20))
    written = to_b2nd(x, url, cparams={"clevel": 0}, storage_options=options)
    info = fsspec.filesystem("az", **options).info(url.removeprefix("az://"))
    assert info["size"] > 16 << 23
    np.testing.assert_array_equal(written[3, ::1000].compute(), x[3, ::1000].compute())
    assert verify(url, storage_options=options).ok


def test_a_frame_that_is_replaced_by_one_of_the_same_size(azure: Azure) -> None:
    url, options = f"{azure.url}/replaced.b2nd", azure.storage_options
    flat = {"cparams": {"clevel": 0}, "chunks": (50, 1000), "storage_options": options}
    to_b2nd(VALUES, url, **flat)
    frame, x = open_b2nd(url, storage_options=options), from_b2nd(url, storage_options=options)
    size = frame.info["size"]
    to_b2nd(VALUES + 1, url, mode="w", **flat)
    assert open_b2nd(url, storage_options=options).info["size"] == size
    for read in (lambda: frame[3], lambda: x.sum().compute(scheduler="threads")):
        with pytest.raises(StaleFrameError, match=r"replaced\.b2nd"):
            read()
    with pytest.raises(FileExistsError, match=r"replaced\.b2nd"):
        to_b2nd(VALUES, url, **flat)


def test_what_is_not_there_and_what_is_not_allowed(azure: Azure, port: int) -> None:
    for url in (f"{azure.url}/none.b2nd", "az://nothing/none.b2nd"):
        with pytest.raises(FileNotFoundError, match=r"none\.b2nd"):
            open_b2nd(url, storage_options=azure.storage_options)
    for mode in ("w-", "w"):
        with pytest.raises(FileNotFoundError, match=r"No such bucket: 'az://nothing/n\.b2nd'"):
            to_b2nd(VALUES, "az://nothing/n.b2nd", mode=mode, storage_options=azure.storage_options)
    with pytest.raises(FileNotFoundError, match=r"only \* is expanded.*'az://frames/a\?\.b2nd'"):
        open_b2nd(f"{azure.url}/a?.b2nd", storage_options=azure.storage_options)
    wrong = "d3Jvbmc" + KEY[7:]
    with pytest.raises(PermissionError, match=r"a\.b2nd: .*Authorization header.*\.'$") as caught:
        open_b2nd(f"{azure.url}/a.b2nd", storage_options=options_of(port, wrong))
    assert wrong not in str(caught.value) + repr(caught.value.__cause__)
