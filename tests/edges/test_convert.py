"""Conversions: values, dims and attributes, against what other software reads."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask import convert, open_b2nd, to_b2nd
from tests.forked import answer, run_forked, started
from tests.peak import peak_growth
from tests.strategies import examples

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")
xr = pytest.importorskip("xarray", reason="of the extra convert")

RNG = np.random.default_rng(5)
DTYPES = ["?", "i1", "u2", "<i4", ">i4", "u8", "<f4", ">f8", "c8"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def dataset() -> Any:
    coords = {
        "time": pd.date_range("2020-02-27", periods=6, freq="7h"),
        "lat": ("lat", [-10.0, 0.5, 45.0], {"units": "degrees_north"}),
    }
    rain = RNG.random((6, 3)).astype("f4").round(1)
    rain[2, 1] = np.nan
    ds = xr.Dataset(
        {
            "rain": (("time", "lat"), rain, {"units": "mm", "levels": [1, 2, 3]}),
            "count": ("time", np.arange(6, dtype="i2"), {"valid_max": np.int16(7)}),
            "nodim": ((), 3.5),
        },
        coords=coords,
        attrs={"title": "naïve", "version": 3},
    )
    ds["rain"].encoding = {"scale_factor": 0.1, "dtype": "i2", "_FillValue": -9}
    return ds


def write_as(kind: str, ds: Any) -> str:
    if kind == "zarr2":
        ds.to_zarr("src.zarr", zarr_format=2, consolidated=False)
        return "src.zarr"
    if kind == "zarr3":
        ds.to_zarr("src.zarr", zarr_format=3, consolidated=False)
        return "src.zarr"
    ds.to_netcdf("src.nc", engine=kind)
    return "src.nc"


def opened(path: str) -> Any:
    engine = {"nc": "netcdf4", "rr": "zarr"}.get(path[-2:], "b2nd")
    if path.endswith(".zarr"):
        return xr.open_zarr(path, consolidated=False).load()
    return xr.open_dataset(path, engine=engine).load()


# ---- labelled datasets, by what xarray reads of them


@pytest.mark.parametrize("kind", ["zarr2", "zarr3", "netcdf4", "h5netcdf"])
def test_a_dataset_is_the_same_in_all_formats(kind: str) -> None:
    source = write_as(kind, dataset())
    want = opened(source)
    for number, suffix in enumerate(["b2d", "b2z", "zarr", "nc"]):
        target = f"new{number}.{suffix}"
        assert convert(source, target, check=True) == target
        xr.testing.assert_identical(opened(target), want)
    # and back
    for frames in ("new0.b2d", "new1.b2z"):
        for suffix in ("zarr", "nc"):
            back = f"{frames[:4]}-back.{suffix}"
            convert(frames, back)
            xr.testing.assert_identical(opened(back), want)


def test_packed_values_stay_packed() -> None:
    source = write_as("netcdf4", dataset())
    convert(source, "new.b2d")
    with h5py.File(source) as file:
        stored = file["rain"][:]
    frame = blosc2.open("new.b2d/rain.b2nd")
    assert frame.dtype == stored.dtype == np.int16
    np.testing.assert_array_equal(frame[:], stored)
    assert stored[2, 1] == -9


def test_groups_stay_groups() -> None:
    with h5py.File("src.h5", "w") as file:
        file["a"] = np.arange(5)
        file.create_dataset("run/b", data=np.arange(6.0).reshape(2, 3))
        file["run/deep/c"] = np.arange(3, dtype="u1")
        file["run"].attrs["who"] = "me"
    convert("src.h5", "new.b2d")
    convert("new.b2d", "back.zarr")
    convert("src.h5", "new.b2z")
    convert("new.b2z", "back.h5")
    group = zarr.open("back.zarr")
    with h5py.File("back.h5") as back, h5py.File("src.h5") as file:
        for name in ("a", "run/b", "run/deep/c"):
            for got in (back[name], group[name]):
                assert got.dtype == file[name].dtype
                np.testing.assert_array_equal(got[:], file[name][:])
        assert back["run"].attrs["who"] == group["run"].attrs["who"] == "me"


# ---- single arrays


def cases() -> st.SearchStrategy[tuple[np.ndarray, tuple[int, ...]]]:
    @st.composite
    def case(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        chunks = tuple(draw(st.integers(1, 6)) for _ in shape)
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        seed = draw(st.integers(0, 1 << 20))
        raw = np.random.default_rng(seed).integers(0, 100, shape)
        return raw.astype(dtype), chunks

    return case()


@given(cases(), st.sampled_from(["npy", "zarr", "zarr2", "h5"]))
@examples(20)
def test_arrays_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Any, Any], kind: str
) -> None:
    values, chunks = case
    folder = tmp_path_factory.mktemp("c")
    attrs = {"units": "K", "number": 3, "list": [1, 2], "text": "naïve"}
    suffix = "zarr" if kind == "zarr2" else kind
    source, frame, back = (
        str(folder / f"{n}.{s}") for n, s in (("s", suffix), ("f", "b2nd"), ("b", suffix))
    )
    if kind == "npy":
        np.save(source, values)
    elif kind == "h5":
        with h5py.File(source, "w") as file:
            cut = values.ndim and values.size
            size = {"chunks": tuple(min(c, n) for c, n in zip(chunks, values.shape, strict=True))}
            file.create_dataset("f", data=values, **(size if cut else {}))
            file["f"].attrs.update(attrs)
    else:
        version = 2 if kind == "zarr2" else 3
        made = zarr.create_array(
            source, data=values, chunks=chunks, zarr_format=version, attributes=attrs
        )
    convert(source, frame, check=True)
    np.testing.assert_array_equal(blosc2.open(frame)[...], values)
    # the order of bytes is a matter of storage in zarr
    native = kind.startswith("zarr")
    dtype = open_b2nd(frame).dtype
    assert (dtype.newbyteorder("=") if native else dtype) == (
        values.dtype.newbyteorder("=") if native else values.dtype
    )
    with warnings.catch_warnings():
        # of zarr, for big-endian numbers in version 3
        warnings.simplefilter("ignore")
        convert(frame, back, check=True)
    if kind == "npy":
        got = np.load(back)
        assert got.dtype == values.dtype
    elif kind == "h5":
        with h5py.File(back) as file:
            got = file["f"][...]
            assert got.dtype == values.dtype
            found = {key: file["f"].attrs[key] for key in attrs}
            np.testing.assert_equal(found, attrs | {"list": np.array([1, 2])})
    else:
        made = zarr.open(back)
        got = made[...]
        assert dict(made.attrs) == attrs
    np.testing.assert_array_equal(got, values)


def test_texts_and_times_through_hdf5() -> None:
    to_b2nd(np.array(["a", "naïve", ""]), "text.b2nd")
    to_b2nd(np.array(["2020-01-01", "NaT", "1969-03-01"], "M8[s]"), "time.b2nd")
    for name in ("text", "time"):
        convert(f"{name}.b2nd", f"{name}.nc::values")
    with xr.open_dataset("time.nc", engine="h5netcdf", phony_dims="sort") as ds:
        want = blosc2.open("time.b2nd")[:]
        np.testing.assert_array_equal(ds["values"].values.astype("M8[s]"), want)
    convert("text.nc::values", "back.b2nd")
    np.testing.assert_array_equal(open_b2nd("back.b2nd")[:], ["a", "naïve", ""])


def test_npz_and_members() -> None:
    first, second = RNG.random((7, 4)), np.arange(3, dtype="u2")
    np.savez_compressed("src.npz", first=first, second=second)
    convert("src.npz", "new.b2d", check=True)
    convert("src.npz", "one.b2nd", member="second")
    np.testing.assert_array_equal(blosc2.open("one.b2nd")[:], second)
    convert("new.b2d", "back.npz")
    with np.load("back.npz") as back:
        np.testing.assert_array_equal(back["first"], first)
        np.testing.assert_array_equal(back["second"], second)
    with pytest.raises(ValueError, match=r"holds first, second.*member="):
        convert("src.npz", "all.b2nd")
    with pytest.raises(FileNotFoundError, match=r"'third'.*first, second"):
        convert("src.npz::third", "all.b2nd")


def test_a_frame_with_its_coordinates() -> None:
    source = write_as("netcdf4", dataset()[["rain"]])
    convert(source, "rain.b2nd")
    want = opened(source)
    xr.testing.assert_identical(xr.open_dataarray("rain.b2nd", engine="b2nd").load(), want["rain"])
    convert("rain.b2nd", "back.nc")
    xr.testing.assert_identical(opened("back.nc")["rain"], want["rain"])


def test_a_frame_of_caterva_is_given_a_dtype() -> None:
    values = RNG.random((20, 30))
    to_b2nd(values.view("V8"), "old.b2nd", caterva=True, chunks=(7, 11))
    convert("old.b2nd", "raw.b2nd")
    assert open_b2nd("raw.b2nd").dtype == np.dtype("V8")
    with pytest.raises(ValueError, match="dtype="):
        convert("x.npy", "y.b2nd", dtype="f8")


def test_chunks_and_codec() -> None:
    np.save("x.npy", RNG.integers(0, 9, (40, 60)))
    convert("x.npy", "x.b2nd", chunks=(10, 30), cparams={"codec": "lz4", "clevel": 7})
    frame = blosc2.open("x.b2nd")
    assert frame.chunks == (10, 30)
    assert (frame.cparams.codec, frame.cparams.clevel) == (blosc2.Codec.LZ4, 7)
    convert("x.b2nd", "x.zarr", chunks=(20, 20), cparams={"codec": "zstd", "clevel": 3})
    array = zarr.open("x.zarr")
    assert array.chunks == (20, 20)
    assert array.compressors[0].clevel == 3
    convert("x.b2nd", "x.h5", chunks=(20, 20))
    with h5py.File("x.h5") as file:
        assert (file["values"].chunks, file["values"].compression) == ((20, 20), "gzip")
    for bad in ({"chunks": (3,)}, {"cparams": {"codec": "nothing"}}):
        for target in ("bad.zarr", "bad.h5", "bad.b2nd"):
            with pytest.raises((ValueError, TypeError)):
                convert("x.b2nd", target, **bad)
    assert not any(name.startswith((".", "bad")) for name in names(Path()))


# ---- what is refused, and what is named


def test_what_frames_cannot_hold_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with h5py.File("src.h5", "w") as file:
        file["good"] = np.arange(4)
        file["text"] = np.array(["a", "bcd"], object)
        file["link"] = np.array([file["good"].ref], h5py.ref_dtype)
        file["kind"] = np.zeros(3, h5py.enum_dtype({"A": 0, "B": 1}, "i4"))
        file["empty"] = h5py.Empty("f4")
    before = names(tmp_path)
    with pytest.raises(TypeError) as error:
        convert("src.h5", "new.b2d")
    for text in ("src.h5/text: strings", "link: elements of references", "kind: an enum", "empty"):
        assert text in str(error.value)
    assert "skip=True" in str(error.value)
    assert names(tmp_path) == before
    with pytest.warns(UserWarning, match=r"left out.*src\.h5/text"):
        convert("src.h5", "new.b2d", skip=True)
    assert names(tmp_path / "new.b2d") == {"good.b2nd", "dataset.json", "embed.b2e"}


def test_attributes_that_do_not_fit_are_named() -> None:
    with h5py.File("src.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4), maxshape=(None,))
        file["x"].attrs["ref"] = file["x"].ref
        file["x"].attrs["kept"] = np.float32(0.5)
    with pytest.warns(UserWarning, match=r"'ref' of src\.h5/x.*unlimited|unlimited.*'ref'"):
        convert("src.h5", "x.b2nd")
    kept = xr.open_dataarray("x.b2nd", engine="b2nd").attrs["kept"]
    assert (kept, kept.dtype) == (0.5, np.float32)
    with pytest.warns(UserWarning, match="attributes of .*kept"):
        convert("x.b2nd", "x.npy")


def test_names_that_no_file_can_have() -> None:
    with h5py.File("src.h5", "w") as file:
        file[".hidden"] = np.arange(4)
    with pytest.raises(ValueError, match=r"'\.hidden' cannot be the name of a file"):
        convert("src.h5", "new.b2d")
    zarr.create_array("a.zarr", data=np.arange(3))
    for bad, text in (
        (("a.zarr", "new.tiff"), "target_format="),
        (("a.zarr", "s3://bucket/new.b2nd"), "local files"),
        (("https://host/a.h5", "new.b2nd"), "download"),
        (("none.h5", "new.b2nd"), "no such file"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=text):
            convert(*bad)


def test_a_target_is_replaced_only_when_asked() -> None:
    np.save("x.npy", np.arange(5))
    convert("x.npy", "x.b2nd")
    np.save("x.npy", np.arange(7))
    with pytest.raises(FileExistsError, match="overwrite"):
        convert("x.npy", "x.b2nd")
    assert open_b2nd("x.b2nd").shape == (5,)
    convert("x.npy", "x.b2nd", overwrite=True)
    assert open_b2nd("x.b2nd").shape == (7,)
    convert("x.npy", "x.zarr")
    convert("x.npy", "x.zarr", overwrite=True, chunks=3)
    assert zarr.open("x.zarr").chunks == (3,)
    assert not [name for name in names(Path()) if name.startswith(".")]


@pytest.mark.parametrize("kind", ["npy", "h5", "zarr", "npz", "zarr.json", "b2nd"])
def test_damaged_sources(kind: str, tmp_path: Path) -> None:
    values = RNG.random((50, 40))
    source = tmp_path / f"src.{kind}"
    if kind == "npy":
        np.save(source, values)
    elif kind == "npz":
        np.savez(source, x=values)
    elif kind == "b2nd":
        to_b2nd(values, source)
    elif kind == "h5":
        with h5py.File(source, "w") as file:
            file["x"] = values
    else:
        source = tmp_path / "src.zarr"
        group = zarr.open_group(source, mode="w")
        group.create_array("x", data=values, chunks=(50, 40))
        name = "c/0/0" if kind == "zarr" else "zarr.json"
        raw = (source / "x" / name).read_bytes()
        (source / "x" / name).write_bytes(raw[: len(raw) // 2])
    if source.is_file():
        raw = source.read_bytes()
        source.write_bytes(raw[: len(raw) // 2])
    before = names(tmp_path)
    with pytest.raises(Exception, match=r".") as error:
        convert(source, "new.b2d")
    assert not isinstance(error.value, AssertionError)
    assert names(tmp_path) == before


def test_hostile_files_of_hdf5(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    with h5py.File("src.h5", "w") as file:
        file["g/x"] = np.arange(4)
        file["g/again"] = file["g"]
        file["red\x1b[31m"] = np.arange(3)
        file["red\x1b[31m"].attrs["a\x1b"] = file["g"].ref
        file.create_dataset("out", (4,), "i4", external=[("secret", 0, 16)])
        file["soft"] = h5py.SoftLink("/g/x")
    with pytest.raises(ValueError, match=r"red.* cannot be the name of a file") as error:
        convert("src.h5", "new.b2d")
    assert "\x1b" not in str(error.value)
    with pytest.raises(TypeError, match=r"src\.h5/out: its elements lie in other files"):
        convert("src.h5", "new.zarr")
    with pytest.warns(UserWarning, match="cannot hold") as warned:
        convert("src.h5", "new.zarr", skip=True)
    (text,) = (str(each.message) for each in warned if "cannot hold" in str(each.message))
    assert "g/again, which is another name of a group" in text
    assert "src.h5/soft, which is a link" in text
    assert "\x1b" not in text
    assert list(zarr.open_group("new.zarr")["g"]) == ["x"]


def test_a_variable_that_is_called_as_a_dim_of_others() -> None:
    ds = xr.Dataset({"a": (("x", "y"), RNG.random((2, 3))), "x": (("z", "y"), np.ones((4, 3)))})
    ds.to_netcdf("src.nc", engine="netcdf4")
    convert("src.nc", "new.b2d")
    xr.testing.assert_identical(opened("new.b2d"), ds)


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


def test_what_is_not_committed_is_not_converted() -> None:
    rain = xr.DataArray(np.arange(12.0).reshape(4, 3), dims=("time", "lat"), name="rain")
    rain.to_dataset().b2nd.to_b2nd("src.b2d")
    # an append that ended before `dataset.json` was replaced
    to_b2nd(np.ones((2, 3)), "src.b2d/rain.b2nd", mode="r+", append_axis=0)
    convert("src.b2d", "out.zarr")
    assert (zarr.open("out.zarr/rain")[:] == rain.values).all()


def test_text_and_numbers_of_xarray_blosc2() -> None:
    xarray_blosc2 = pytest.importorskip("xarray_blosc2", reason="of the extra test")
    coords = {"station": ["Aa", "Bergen"], "height": 2.0}
    ds = xr.Dataset({"rain": ("station", [1.0, 2.0])}, coords=coords)
    xarray_blosc2.save_dataset(ds, "src")
    convert("src", "out.nc", source_format="b2d")
    with xr.open_dataset("out.nc") as found:
        assert found.station.values.tolist() == ["Aa", "Bergen"]
        assert found.rain.values.tolist() == [1.0, 2.0]
        assert found.height.values == 2.0


def test_our_datasets_open_elsewhere() -> None:
    other = pytest.importorskip("xarray_blosc2", reason="of the extra test")
    source = write_as("zarr3", dataset()[["count"]])
    convert(source, "new.b2d")
    np.testing.assert_array_equal(other.open("new.b2d")["count"], np.arange(6))


# ---- arrays and groups of zarr and h5py as input of to_b2nd


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
    assert open_b2nd("z.b2nd").attrs["dims"] == list(labelled.dims)


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


def test_strings_of_any_length_of_zarr() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(zarr.storage.MemoryStore(), shape=3, dtype="str")
    with pytest.raises(TypeError, match='"U20"'):
        to_b2nd(array, "x.b2nd")


def test_memory_that_is_too_little() -> None:
    zarr.create_array("a.zarr", shape=(1000, 1000), chunks=(1000, 1000), dtype="f8")
    with pytest.raises(ValueError, match="give 32000000 or more"):
        convert("a.zarr", "a.b2nd", max_mem="1MB")
    convert("a.zarr", "a.b2nd", max_mem="64MB")


def test_check_sees_what_was_written_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    from b2nd_dask.edges.convert import write_npy

    copy = write_npy.copy_blocks

    def one_wrong(array: Any, target: Any, *rest: Any) -> None:
        copy(array, target, *rest)
        target[3, 2] += 1

    monkeypatch.setattr(write_npy, "copy_blocks", one_wrong)
    zarr.create_array("a.zarr", data=RNG.random((6, 5)))
    with pytest.raises(ValueError, match="differ"):
        convert("a.zarr", "a.npy", check=True)
    assert names(Path()) == {"a.zarr"}


def test_progress_reaches_the_end() -> None:
    np.save("x.npy", RNG.random((3000, 1000)))
    for target in ("x.b2nd", "x.zarr", "x.h5"):
        seen: list[tuple[int, int]] = []
        convert("x.npy", target, progress=lambda done, of: seen.append((done, of)))  # noqa: B023
        assert len(seen) > 1
        assert seen[-1][0] == seen[-1][1]
    assert b2nd_dask.verify("x.b2nd").ok


# ---- other software, killed processes, memory


def test_against_the_tool_of_python_blosc2() -> None:
    from blosc2.cli.b2nd_to_zarr import b2nd_to_zarr

    values = RNG.integers(0, 50, (60, 45)).astype("i4")
    to_b2nd(values, "x.b2nd", chunks=(20, 15))
    convert("x.b2nd", "ours.zarr")
    b2nd_to_zarr("x.b2nd", "theirs.zarr")
    ours, theirs = zarr.open_array("ours.zarr"), zarr.open_array("theirs.zarr")
    np.testing.assert_array_equal(ours[:], theirs[:])
    assert (ours.dtype, ours.chunks) == (theirs.dtype, theirs.chunks)
    # and what it writes comes back
    convert("theirs.zarr", "back.b2nd")
    np.testing.assert_array_equal(open_b2nd("back.b2nd")[:], values)


def test_files_of_caterva() -> None:
    path = Path(__file__).parents[1] / "data/caterva/cat054d_2d_i2.caterva"
    raw = open_b2nd(path)
    convert(path, "new.b2nd", dtype="i2", check=True)
    got = blosc2.open("new.b2nd")
    assert got.dtype == np.int16
    assert got[:].tobytes() == raw[...].tobytes()


def _converting(source: str, target: str, connection: Any) -> None:
    def wait(done: int, of: int) -> None:
        connection.send((done, of))
        time.sleep(600)

    convert(source, target, progress=wait)


@pytest.mark.parametrize("suffix", ["zarr", "h5", "b2d"])
def test_a_killed_conversion_leaves_nothing_under_the_name(suffix: str, tmp_path: Path) -> None:
    np.savez("x.npz", x=RNG.random((1500, 1500)), y=np.arange(3))
    target = tmp_path / f"new.{suffix}"
    source = str(tmp_path / "x.npz")
    with started(_converting, source, str(target)) as (process, connection):
        done, of = answer(connection)
        assert 0 < done < of
        assert not target.exists()
        process.kill()
        process.join()
    assert not target.exists()
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["x.npz"]
    (left,) = b2nd_dask.list_staging(target)
    assert left.path.endswith(".staging")
    b2nd_dask.remove_staging(target)
    assert names(tmp_path) == {"x.npz"}
    convert(source, target)
    assert target.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("zarr", "b2nd"), ("b2nd", "zarr"), ("h5", "b2nd")])
def test_memory_is_bounded(first: str, second: str, tmp_path: Path) -> None:
    shape, chunks = (400, 1000, 100), (10, 500, 100)
    values = np.random.default_rng(1).integers(0, 9, shape)
    source, target = tmp_path / f"x.{first}", tmp_path / f"y.{second}"
    if first == "zarr":
        zarr.create_array(source, data=values, chunks=chunks)
    elif first == "h5":
        with h5py.File(source, "w") as file:
            file.create_dataset("x", data=values, chunks=chunks)
    else:
        to_b2nd(values, source, chunks=chunks)
    grown = peak_growth(
        "b2nd_dask.convert(source, target, max_mem='96MB')",
        before=f"b2nd_dask.convert(small, str(small) + '.{second}')",
        small=_small(tmp_path, first),
        source=source,
        target=target,
    )
    assert grown < 128 << 20 < values.nbytes // 2


def _small(folder: Path, kind: str) -> Path:
    """A tiny file of the same format, by which all packages are loaded."""
    small = folder / f"small.{kind}"
    np.save(folder / "small.npy", np.arange(3))
    convert(folder / "small.npy", small)
    return small
