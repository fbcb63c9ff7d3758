"""Arrays and groups of zarr and h5py as input of to_b2nd."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import convert, open_b2nd, to_b2nd
from tests.edges.convert.samples import RNG, dataset, opened, write_as
from tests.forked import run_forked

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")
xr = pytest.importorskip("xarray", reason="of the extra convert")


def convert_from_s3(options: dict[str, Any], folder: str) -> None:
    values = np.random.default_rng(5).random((20, 30))
    array = zarr.create_array(
        "s3://zarrs/a.zarr", data=values, chunks=(10, 10), storage_options=options
    )
    convert("s3://zarrs/a.zarr", f"{folder}/a.b2nd", storage_options=options, check=True)
    to_b2nd(array, f"{folder}/b.b2nd")
    for name in ("a.b2nd", "b.b2nd"):
        np.testing.assert_array_equal(open_b2nd(f"{folder}/{name}")[:], values)


def test_zarr_at_a_url(s3_server: Any, tmp_path: Path) -> None:
    s3_server.client.create_bucket(Bucket="zarrs")
    # in a process of its own: zarr leaves connections open, of which Python warns later
    run_forked(convert_from_s3, s3_server.storage_options, str(tmp_path))


@pytest.mark.parametrize("member", ["", "::/x"])
def test_a_chain_of_urls(tmp_path: Path, member: str) -> None:
    frames = {"x": ("n", [1, 2, 3])} if member else {"x": ("n", [1, 2, 3]), "y": ("n", [4, 5, 6])}
    to_b2nd(xr.Dataset(frames), "src.b2d")
    with zipfile.ZipFile("all.zip", "w") as archive:
        for path in Path("src.b2d").iterdir():
            archive.write(path)
    convert(f"zip://src.b2d::file://{tmp_path}/all.zip{member}", "new.h5", check=True)
    with h5py.File("new.h5") as found:
        assert {*found} - {"n"} == {*frames}
        assert found["x"][:].tolist() == [1, 2, 3]


def write_damaged(url: str, target: str) -> str:
    array = zarr.open_array(url, mode="r")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:\d+/a\.zarr") as error:
        to_b2nd(array, target)
    return str(error.value)


def test_no_secret_of_the_url_of_an_array_is_shown(http_server: Any, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="of the extra http")
    zarr.create_array(http_server.folder / "a.zarr", data=np.arange(1, 4))
    (http_server.folder / "a.zarr/c/0").write_bytes(b"no chunk")
    url = http_server.url.replace("://", "://me:hush@")
    # in a process of its own, as above
    assert "hush" not in run_forked(write_damaged, f"{url}/a.zarr", str(tmp_path / "x.b2nd"))


@pytest.mark.parametrize("how", ["v2", "v3", "sharded", "zip", "memory"])
def test_arrays_of_zarr(how: str) -> None:
    values = RNG.random((30, 20))
    store: Any = "a.zarr"
    if how == "zip":
        store = zarr.storage.ZipStore("a.zip", mode="w")
    elif how == "memory":
        store = zarr.storage.MemoryStore()
    more: dict[str, Any] = {"dimension_names": ("y", "x")} if how != "v2" else {}
    if how == "sharded":
        more["shards"] = (15, 20)
    array = zarr.create_array(
        store,
        data=values,
        chunks=(5, 10),
        zarr_format=2 if how == "v2" else 3,
        attributes={"units": "K", "n": 3},
        **more,
    )
    if how == "zip":
        store.close()
        array = zarr.open_array(zarr.storage.ZipStore("a.zip", mode="r"), mode="r")
    x = to_b2nd(array, "x.b2nd")
    np.testing.assert_array_equal(x.compute(), values)
    np.testing.assert_array_equal(blosc2.open("x.b2nd")[:], values)
    labelled = xr.open_dataarray("x.b2nd", engine="b2nd")
    assert labelled.attrs == {"units": "K", "n": 3}
    assert labelled.dims == (("dim_0", "dim_1") if how == "v2" else ("y", "x"))
    # into a part of a frame, and with metadata of one's own
    to_b2nd(array, "x.b2nd", mode="r+", region=...)
    to_b2nd(array, "y.b2nd", vlmeta={})
    assert not dict(open_b2nd("y.b2nd").vlmeta)
    # an append that begins a frame
    to_b2nd(array, "z.b2nd", mode="a", append_axis=0)
    assert to_b2nd(array, "z.b2nd", mode="a", append_axis=0).shape == (60, 20)
    assert open_b2nd("z.b2nd").attrs.get("dims") == (None if how == "v2" else ["y", "x"])


def test_shards_are_read_once() -> None:
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(4000, 300),
        chunks=(100, 100),
        shards=(1000, 300),
        dtype="f8",
    )
    x = to_b2nd(array, "x.b2nd")
    assert all(size % 1000 == 0 for size in x.chunks[0])
    assert all(size % 300 == 0 for size in x.chunks[1])


def test_groups_of_zarr_and_h5py() -> None:
    source = write_as("zarr3", dataset())
    arrays = to_b2nd(zarr.open_group(source), "new.b2d")
    xr.testing.assert_identical(opened("new.b2d"), opened(source))
    np.testing.assert_array_equal(arrays["count"].compute(), np.arange(6))
    dataset().to_netcdf("src.nc", engine="netcdf4")
    with h5py.File("src.nc") as file:
        to_b2nd(file, "new.b2z")
        x = to_b2nd(file["rain"], "rain.b2nd")
        np.testing.assert_array_equal(x.compute(), file["rain"][:])
        with pytest.raises(ValueError, match=r"append_axis=.*new directory"):
            to_b2nd(file, "more.b2d", mode="a", append_axis=0)
        with pytest.raises(ValueError, match=r"NAME\.b2d"):
            to_b2nd(file, "more.b2nd")
    assert open_b2nd("rain.b2nd").vlmeta["dims"] == ["time", "lat"]
    xr.testing.assert_identical(opened("new.b2z"), opened("src.nc"))


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ((40, 30), {"a": (40, 30), "bounds": (40, 2), "t": (100,)}),
        (50, {"a": (50, 50), "bounds": (50, 2), "t": (50,)}),
        ([-1, 7], {"a": (100, 7), "bounds": (100, 2), "t": (100,)}),
    ],
)
@pytest.mark.parametrize("how", ["to_b2nd", "convert"])
def test_chunks_of_a_group_are_not_longer_than_its_arrays(
    chunks: Any, found: dict[str, tuple[int, ...]], how: str
) -> None:
    """Chunks for the maps would store their bounds with many times as many zeros."""
    with h5py.File("src.h5", "w") as file:
        file["a"], file["bounds"], file["t"] = np.ones((100, 60)), np.ones((100, 2)), np.ones(100)
        if how == "to_b2nd":
            to_b2nd(file, "new.b2d", chunks=chunks, blocks=7)
            with pytest.raises(ValueError, match=r"has 3 numbers, but arrays of .* 1 or 2 axes"):
                to_b2nd(file, "other.b2d", chunks=(1, 2, 3))
            to_b2nd(file, "auto.b2d", chunks="auto")
    if how == "convert":
        convert("src.h5", "new.b2d", chunks=chunks)
    assert {name: open_b2nd(f"new.b2d/{name}.b2nd").chunks for name in found} == found


def test_strings_of_any_length_of_zarr() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(zarr.storage.MemoryStore(), shape=3, chunks=2, dtype="str")
        array[:] = ["a", "naïve", ""]
    assert to_b2nd(array, "x.b2nd").compute().tolist() == ["a", "naïve", ""]
    assert open_b2nd("x.b2nd").dtype == "U5"


def test_a_longer_text_since_the_array_was_opened_is_not_cut() -> None:
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=3, chunks=2, dtype="str", zarr_format=2
    )
    array[:] = "short"
    delayed = to_b2nd(array, "x.b2nd", compute=False)
    array[1] = "longer"
    with pytest.raises(OSError, match="changed"):
        delayed.compute()
