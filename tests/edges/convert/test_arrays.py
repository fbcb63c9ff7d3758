"""Conversions of single arrays: values, dtypes, chunks, attributes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import convert, open_b2nd, to_b2nd
from tests.edges.convert.samples import RNG, dataset, names, opened, write_as
from tests.strategies import examples

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")
xr = pytest.importorskip("xarray", reason="of the extra convert")

DTYPES = ["?", "i1", "u2", "<i4", ">i4", "u8", "<f4", ">f8", "c8"]


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
        convert(f"{name}.b2nd", f"{name}.nc::values", check=True)
    with xr.open_dataset("time.nc", engine="h5netcdf", phony_dims="sort") as ds:
        want = blosc2.open("time.b2nd")[:]
        np.testing.assert_array_equal(ds["values"].values.astype("M8[s]"), want)
    convert("text.nc::values", "back.b2nd")
    np.testing.assert_array_equal(open_b2nd("back.b2nd")[:], ["a", "naïve", ""])


def test_text_with_nul_characters_is_not_cut() -> None:
    to_b2nd(np.array(["a\0b", "c"]), "text.b2nd")
    with pytest.raises(ValueError, match="values: HDF5 cannot hold text with NUL"):
        convert("text.b2nd", "text.nc")
    assert not Path("text.nc").exists()


@pytest.mark.parametrize("shards", [False, True])
def test_chunks_of_several_lengths_in_zarr(shards: bool) -> None:
    sizes = {"chunks": [[3, 3, 4], [2, 2]]}
    if shards:
        sizes = {"chunks": (1, 2), "shards": [[3, 3, 4], [2, 2]]}
    values = np.arange(40.0).reshape(10, 4)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        try:
            array = zarr.create_array("src.zarr", shape=(10, 4), dtype="f8", **sizes)
        except (TypeError, ValueError, NotImplementedError) as error:
            pytest.skip(f"this zarr has no such chunks: {error}")
        array[...] = values
        convert("src.zarr", "new.b2nd", check=True)
    np.testing.assert_array_equal(open_b2nd("new.b2nd"), values)


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
    np.savez("src.npz", **{"run/first": first, "second": second})
    with pytest.raises(ValueError, match=r"one by one by member="):
        convert("src.npz", "new.b2d", overwrite=True)
    convert("src.npz", "one.b2nd", member="run/first", overwrite=True)
    np.testing.assert_array_equal(blosc2.open("one.b2nd")[:], first)


def test_a_frame_with_its_coordinates() -> None:
    source = write_as("netcdf4", dataset()[["rain"]])
    with pytest.warns(UserWarning, match=r"attributes of src\.nc: title, version"):
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
    convert("x.b2nd", "x.zarr", chunks=(20, np.int64(20)), cparams={"codec": "zstd", "clevel": 3})
    array = zarr.open("x.zarr")
    assert array.chunks == (20, 20)
    assert array.compressors[0].clevel == 3
    convert("x.b2nd", "x.h5", chunks=np.int64(20))
    with h5py.File("x.h5") as file:
        assert (file["values"].chunks, file["values"].compression) == ((20, 20), "gzip")
    for bad in ({"chunks": (3,)}, {"cparams": {"codec": "nothing"}}):
        for target in ("bad.zarr", "bad.h5", "bad.b2nd"):
            with pytest.raises((ValueError, TypeError)):
                convert("x.b2nd", target, **bad)
    assert not any(name.startswith((".", "bad")) for name in names(Path()))


@pytest.mark.parametrize("blocks", [(5, 10), 5])
def test_blocks_without_chunks(blocks: Any) -> None:
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", data=RNG.integers(0, 9, (40, 60)), chunks=(20, 60))
        file["y"] = np.arange(30)
    convert("x.h5", "x.b2d", blocks=blocks)
    convert("x.h5::x", "x.b2nd", blocks=blocks)
    for name in ("x.b2d/x.b2nd", "x.b2nd"):
        assert blosc2.open(name).blocks == tuple(np.broadcast_to(blocks, 2))
    np.testing.assert_array_equal(open_b2nd("x.b2d/y.b2nd")[:], np.arange(30))
    for bad, target in (((5,), "bad.b2nd"), (blocks, "bad.zarr"), (0, "bad.b2nd")):
        with pytest.raises(ValueError, match="blocks="):
            convert("x.b2nd", target, blocks=bad)


@pytest.mark.parametrize("target", ["x.b2nd", "g.b2d", "x.zarr", "x.h5"])
def test_minus_one_is_the_whole_axis(target: str) -> None:
    np.save("x.npy", RNG.integers(0, 9, (40, 60)))
    is_frame = "b2" in target
    how: dict[str, Any] = {"blocks": (5, -1)} if is_frame else {}
    convert("x.npy", target, chunks=(20, -1), **how)
    if is_frame:
        frame = open_b2nd("g.b2d/values.b2nd" if target == "g.b2d" else target)
        assert (frame.chunks, frame.blocks) == ((20, 60), (5, 60))
    elif target == "x.zarr":
        assert zarr.open(target).chunks == (20, 60)
    else:
        with h5py.File(target) as file:
            assert file["values"].chunks == (20, 60)
    with pytest.raises(ValueError, match="chunks="):
        convert("x.npy", f"bad{target}", chunks=(20, True))


def test_the_name_of_a_dataset_for_an_array_with_coordinates() -> None:
    array = xr.DataArray(np.ones(3), {"x": [4, 5, 6]}, ("x",), "old")
    to_b2nd(array, "src.b2nd")
    convert("src.b2nd", "new.h5::/g/new", check=True)
    with h5py.File("new.h5") as file:
        assert (set(file), set(file["g"])) == ({"g", "x"}, {"new"})
        assert file["g/new"].dims[0][0].name == "/x"
    to_b2nd(xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [3, 4])}), "src.b2d")
    with pytest.raises(ValueError, match=r"src\.b2d holds a, b; the target can hold one array"):
        convert("src.b2d", "other.h5::/new")
    with pytest.raises(ValueError, match="its coordinate is called x"):
        convert("src.b2nd", "other.h5::/x")


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
    path = Path(__file__).parents[2] / "data/caterva/cat054d_2d_i2.caterva"
    raw = open_b2nd(path)
    convert(path, "new.b2nd", dtype="i2", check=True)
    got = blosc2.open("new.b2nd")
    assert got.dtype == np.int16
    assert got[:].tobytes() == raw[...].tobytes()


@pytest.mark.parametrize("suffix", ["nc", "zarr", "b2d"])
def test_an_array_of_a_dataset_keeps_its_name_and_coordinates(suffix: str) -> None:
    xr = pytest.importorskip("xarray", reason="extra convert")
    dataset = xr.Dataset(
        {"rain": (("time", "lat"), np.arange(12.0).reshape(3, 4)), "level": ("lat", np.ones(4))},
        {"time": np.arange(3), "lat": ("lat", np.arange(4.0), {"units": "degrees"})},
    )
    dataset.to_netcdf("all.nc")
    if suffix != "nc":
        convert("all.nc", f"all.{suffix}")
    convert(f"all.{suffix}::rain", "rain.b2nd", check=True)
    xr.testing.assert_identical(
        xr.open_dataset("rain.b2nd", engine="b2nd").load().drop_attrs(deep=False),
        dataset[["rain"]].drop_attrs(deep=False),
    )
    convert(f"all.{suffix}::lat", "lat.b2nd")
    assert list(xr.open_dataset("lat.b2nd", engine="b2nd").variables) == ["lat"]
