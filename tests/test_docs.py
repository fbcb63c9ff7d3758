"""The Python code of the README and of the pages for users runs unchanged."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import numpy as np
import pytest
import s3fs

import b2nd_dask

if TYPE_CHECKING:
    from tests.servers import HttpServer, S3Server

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^(?:<!-- with: (\w+) -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
STAND_IN = "https://data.example.org"


def blocks(page: str) -> list[tuple[str, str]]:
    """The requirement of each block of Python, and its text."""
    return _BLOCK.findall((ROOT / page).read_text())


def run(page: str, need: str = "", replaced: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Run the blocks without a requirement; or the first one, and those with one requirement."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for at, (needed, text) in enumerate(blocks(page)):
        if needed == need or at == 0:
            exec(compile(text.replace(*replaced), page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_readme() -> None:
    run("README.md")
    assert b2nd_dask.verify("anomaly.b2nd").ok


def test_recipes_on_the_disk() -> None:
    names = run("docs/recipes.md")
    series = blosc2.open("series.b2nd")[:, 45, 90]
    np.testing.assert_array_equal(names["series"], series)
    # the effect of changes and appends
    expected = blosc2.open("rain.b2nd")[:]
    np.testing.assert_array_equal(expected[10:15], expected[:5])
    np.testing.assert_array_equal(blosc2.open("days.b2nd")[:], expected)


def test_recipes_of_many_files() -> None:
    values = np.random.default_rng(3).integers(0, 9, (6, 90, 180)).astype("u2")
    Path("days").mkdir()
    for number, plane in enumerate(values):
        np.save(f"days/{number}.npy", plane)
    run("docs/recipes.md", "npy")
    np.testing.assert_array_equal(blosc2.open("days-of-npy.b2nd")[:], values)


def test_recipes_of_pictures() -> None:
    pytest.importorskip("dask_image", reason="of the extra interop")
    tifffile = pytest.importorskip("tifffile", reason="comes with dask-image")
    values = np.random.default_rng(3).integers(0, 9, (6, 90, 180)).astype("u2")
    Path("planes").mkdir()
    for number, plane in enumerate(values):
        tifffile.imwrite(f"planes/{number}.tif", plane)
    run("docs/recipes.md", "tiff")
    np.testing.assert_array_equal(blosc2.open("volume.b2nd")[:], values)


def test_recipes_of_datasets() -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    pytest.importorskip("h5netcdf", reason="of the extra convert")
    values = np.random.default_rng(3).random((6, 4))
    Path("years").mkdir()
    ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(6)})
    for number in range(3):
        part = ds.isel(time=slice(2 * number, 2 * number + 2))
        part.to_netcdf(f"years/{number}.nc", engine="h5netcdf")
    run("docs/recipes.md", "netcdf")
    xr.testing.assert_identical(xr.open_dataset("years.b2d", engine="b2nd").load(), ds)


def test_larger_than_memory(caplog: pytest.LogCaptureFixture) -> None:
    # settings of the page are undone
    caplog.set_level(logging.INFO, "b2nd_dask")
    with dask.config.set(num_workers=2):
        run("docs/larger-than-memory.md")
    plans = [text for text in caplog.messages if "series.b2nd: pass" in text]
    assert "pass 1 of 1 reads regions (240, 30, 120), 2 at once" in plans[0]
    assert "decoded 1.00 times" in plans[0]
    assert any("pass 2 of 2" in text for text in plans)
    series, maps = blosc2.open("series.b2nd"), blosc2.open("maps.b2nd")
    np.testing.assert_array_equal(series[:, 40:50, 90], maps[:, 40:50, 90])
    np.testing.assert_array_equal(blosc2.open("turned.b2nd")[90, 45], maps[:, 45, 90])
    daily = (maps[:, 45, 90] * 24).round()
    np.testing.assert_array_equal(blosc2.open("daily.b2nd")[:, 45, 90], daily)


def test_looking() -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="an extra")
    matplotlib.use("agg")
    names = run("docs/looking.md")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.close("all")
    titles = [ax.get_title() for ax in names["figure"].axes[:8]]
    assert (titles[0], titles[-1]) == ("z: 0", "z: 39")
    assert Path("map.png").stat().st_size > 1000
    pictures = re.findall(r"\]\((_static/[^)]+)\)", (ROOT / "docs/looking.md").read_text())
    assert len(pictures) == 7
    assert all((ROOT / "docs" / picture).is_file() for picture in pictures)


def test_start_page() -> None:
    values = np.random.default_rng(2).random((4, 60, 100))
    b2nd_dask.to_b2nd(values, "field.b2nd")
    run("docs/index.md")
    anomaly = blosc2.open("anomaly.b2nd")[:]
    np.testing.assert_allclose(anomaly, values - values.mean(axis=0))


def test_install() -> None:
    run("docs/install.md")
    assert blosc2.open("first.b2nd")[:].tolist() == list(range(6))


def test_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("docs/tutorial.md")
    assert names["result"].ok
    celsius = blosc2.open("celsius.b2nd")[:]
    assert celsius.shape == (370, 90, 180)
    np.testing.assert_array_equal(celsius[365:], celsius[:5])
    np.testing.assert_array_equal(blosc2.open("series.b2nd")[:], celsius)
    before = blosc2.open("anomaly.b2nd")[:] + names["mean"]
    before[100] += 1
    np.testing.assert_allclose(before, celsius[:365], atol=1e-3)
    assert "True" in capsys.readouterr().out.splitlines()


def test_recipes_for_s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    options = s3_server.storage_options
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["client_kwargs"]["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    # not a cached file system of another test without credentials
    s3fs.S3FileSystem.clear_instance_cache()
    # one bucket is private, the other one public
    s3_server.client.create_bucket(Bucket="climate")
    anybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
    policy = {"Statement": [anybody | {"Resource": "arn:aws:s3:::open-data/*"}]}
    s3_server.client.create_bucket(Bucket="open-data")
    s3_server.client.put_bucket_policy(Bucket="open-data", Policy=json.dumps(policy))
    values = np.random.default_rng(2).random((60, 90, 180))
    b2nd_dask.to_b2nd(values, "s3://open-data/rain.b2nd")
    names = run("docs/stores.md", "s3")
    assert names["private"].shape == names["public"].shape == (60, 90, 180)
    frame = b2nd_dask.open_b2nd("s3://climate/rain.b2nd", storage_options=options)
    np.testing.assert_array_equal(names["private"].compute(), frame[...])
    with pytest.raises(PermissionError, match="climate"):
        b2nd_dask.open_b2nd("s3://climate/rain.b2nd", storage_options={"anon": True})
    s3fs.S3FileSystem.clear_instance_cache()


def test_recipes_for_http(http_server: HttpServer) -> None:
    values = np.random.default_rng(2).random((60, 90, 180))
    b2nd_dask.to_b2nd(values, "served.b2nd", chunks=(10, 90, 180))
    http_server.put("rain.b2nd", Path("served.b2nd").read_bytes())
    names = run("docs/stores.md", "http", (STAND_IN, http_server.url))
    assert names["remote"].shape == (60, 90, 180)


@pytest.mark.parametrize("need", ["cluster", "zarr", "h5py"])
def test_recipes_with_other_packages(need: str) -> None:
    values = np.random.default_rng(2).random((20, 90, 180))
    if need == "zarr":
        zarr = pytest.importorskip("zarr")
        zarr.create_array("old.zarr", data=values)
    elif need == "h5py":
        h5py = pytest.importorskip("h5py")
        with h5py.File("old.h5", "w") as file:
            file["rain"] = values
            file["rain"].attrs["units"] = "mm"
    run("docs/recipes.md", need)
    if need != "cluster":
        name = {"zarr": "from_zarr.b2nd", "h5py": "from_hdf5.b2nd"}[need]
        np.testing.assert_array_equal(b2nd_dask.open_b2nd(name)[:], values)
    else:
        assert b2nd_dask.verify("twice.b2nd").ok


def test_running_on_a_cluster() -> None:
    names = run("docs/cluster.md", "client")
    assert names["ok"]
    np.testing.assert_array_equal(blosc2.open("twice.b2nd")[:], blosc2.open("rain.b2nd")[:] * 2)
    np.testing.assert_array_equal(names["kept"].compute(), names["days"].compute())


@pytest.mark.parametrize("page", ["from-zarr", "from-hdf5", "from-blosc2"])
def test_coming_from_other_formats(page: str) -> None:
    pytest.importorskip("zarr", reason="of the extra convert")
    names = run(f"docs/{page}.md")
    if page == "from-zarr":
        np.testing.assert_array_equal(names["rain"].compute(), names["ds"]["rain"])
    elif page == "from-hdf5":
        assert names["rain"].attrs["dims"] == ["time", "dim_1"]
        np.testing.assert_array_equal(names["doubled"].compute(), names["rain"][:] * 2)
    else:
        np.testing.assert_array_equal(names["values"][:] * 2, blosc2.open("ours.b2nd")[:])


def test_xarray() -> None:
    pytest.importorskip("flox", reason="needs the extra interop")
    names = run("docs/xarray.md", "xarray")
    assert names["point"].shape == (10, 2)
    np.testing.assert_allclose(names["climatology"].mean(), names["values"].mean(), rtol=1e-3)


def test_every_block_is_run() -> None:
    known = {"", "s3", "http", "cluster", "client", "zarr", "h5py", "xarray"}
    known |= {"npy", "tiff", "netcdf"}
    # imported by tests of the engine for xarray
    known |= {"dask_array"}
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = (ROOT / page).read_text()
        assert len(blocks(page)) == text.count("```python")
        assert {need for need, _ in blocks(page)} <= known


def test_the_architecture_names_what_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    files = [str(path) for path in (ROOT / "b2nd_dask").rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page)
    assert len(named) > 30
    assert [name for name in named if not any(f.endswith(f"/{name}") for f in files)] == []
    text = "".join(Path(path).read_text() for path in files)
    functions = re.findall(r"`(_?[a-zA-Z]+(?:_[a-zA-Z]+)+|_[A-Z_]+)`", page)
    assert [name for name in functions if not re.search(rf"\b{name}\b", text)] == []
