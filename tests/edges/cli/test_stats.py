"""`stats`: against NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.local import SynchronousExecutor
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask.edges.cli.stats import computed
from tests.counting import bytes_read
from tests.edges.cli.running import run, told
from tests.strategies import SpecialCase, examples, shapes, special_cases

DTYPES = ["?", "i1", "u1", "<i4", ">i8", "<u8", "<f2", ">f4", "<f8", ">f8", "<c8", "<c16", "<M8[s]"]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Numbers of all kinds, with NaN and zeros."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(shapes())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values: Any = rng.integers(-9, 9, shape) if draw(st.booleans()) else rng.normal(3, 9, shape)
    if dtype.kind in "uM?":
        values = np.abs(values)
    values = np.asarray(values).astype("i8" if dtype.kind == "M" else dtype).astype(dtype)
    if dtype.kind in "fcM":
        values[rng.random(shape) < draw(st.sampled_from([0, 0.3, 1]))] = (
            "NaT" if dtype.kind == "M" else np.nan
        )
    return values


def expected(values: np.ndarray, axis: Any) -> dict[str, np.ndarray]:
    """What NumPy says; by its functions that leave out NaN."""
    kind = values.dtype.kind
    missing = np.isnan(values) if kind in "fcM" else np.zeros(values.shape, bool)
    found = {
        "count": (~missing).sum(axis),
        "nan": missing.sum(axis),
        "zeros": (values == np.zeros((), values.dtype)).sum(axis),
    }
    wide: Any = values.astype({"c": "c16"}.get(kind, "f8")) if kind != "M" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if wide is not None and values.size:
            found["mean"] = np.nanmean(wide, axis)
            found["std"] = np.nanstd(wide, axis)
        if kind not in "cM" and values.size:
            found["min"], found["max"] = np.nanmin(wide, axis), np.nanmax(wide, axis)
    return found


@given(arrays(), st.data())
@examples(60)
def test_statistics_are_those_of_numpy(values: np.ndarray, data: st.DataObject) -> None:
    axes = data.draw(st.none() | st.sets(st.integers(0, max(0, values.ndim - 1)), min_size=1))
    axis = None if axes is None or not values.ndim else tuple(sorted(axes))
    x = da.from_array(values, chunks=tuple(max(1, -(-n // 2)) for n in values.shape))
    got = computed(x, axis)
    want = expected(values, axis)
    for name in ("count", "nan", "zeros"):
        np.testing.assert_array_equal(got[name], want[name])
    some = got["count"] > 0
    for name in set(want) & {"min", "max", "mean", "std"}:
        assert np.ma.getmaskarray(got[name])[~some].all()
        values, wide = np.asarray(got[name])[some], want[name][some]
        close = 1e-9 if name == "std" else 1e-12
        np.testing.assert_allclose(values, wide, rtol=close, atol=close)


@given(data=st.data())
@examples(15)
def test_special_chunks_count(data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    case: SpecialCase = data.draw(special_cases(data.draw(st.sampled_from(["zeros", "nans"]))))
    if case.dtype.kind not in "biuf":
        return
    path = fresh_path()
    case.write(path)
    values = blosc2.open(str(path))[...]
    (found,) = told("stats", str(path))
    want = expected(values, None)
    assert (found["count"], found["nan"], found["zeros"]) == (
        want["count"],
        want["nan"],
        want["zeros"],
    )
    if want["count"]:
        assert found["min"] == want["min"]
        assert found["max"] == want["max"]
    else:
        assert found["min"] is found["mean"] is None


@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_elements_are_read_once(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).integers(0, 2**30, (300, 1000)).astype(dtype)
    b2nd_dask.to_b2nd(values, path, chunks=(30, 1000), blocks=(10, 1000))
    x = b2nd_dask.from_b2nd(path, chunks=(100, 1000))
    # all in the thread whose reads are counted
    with dask.config.set(pool=SynchronousExecutor()):
        nbytes, _ = bytes_read(lambda: computed(x))
    assert 0.9 < nbytes / path.stat().st_size < 1.2


def test_axis_and_dates(tmp_path: Path) -> None:
    path = str(tmp_path / "t.b2nd")
    days = np.arange("2020-01-01", "2020-01-07", dtype="M8[D]").reshape(2, 3)
    days[0, 1] = "NaT"
    b2nd_dask.to_b2nd(days, path)
    (found,) = told("stats", path, "--axis", "-1")
    assert found["axes"] == [1]
    assert found["kept_axes"] == [0]
    assert found["min"] == ["2020-01-01", "2020-01-04"]
    assert found["max"] == ["2020-01-03", "2020-01-06"]
    assert found["nan"] == [1, 0]
    assert found["mean"] is None
    lines = run("stats", path, "--axis", "1").output.splitlines()
    assert lines[1].split() == ["index", "count", "NaN", "zeros", "min", "max", "mean", "std"]
    assert lines[2].split()[:5] == ["0", "2", "1", "0", "2020-01-01"]


@pytest.mark.parametrize("axis", ["2", "0,0", "x", "-3"])
def test_axes_that_are_none(tmp_path: Path, axis: str) -> None:
    path = tmp_path / "t.b2nd"
    b2nd_dask.to_b2nd(np.ones((2, 3)), path)
    result = run("stats", str(path), "--axis", axis)
    assert result.exit_code in (1, 2)
    assert "axis" in result.stderr


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_of_a_frame_without_elements(tmp_path: Path, axis: int) -> None:
    b2nd_dask.to_b2nd(np.zeros((3, 0, 2)), tmp_path / "a.b2nd")
    result = run("stats", "--axis", str(axis), str(tmp_path / "a.b2nd"))
    assert result.exit_code == 0, result.stderr
    _, head, *lines = result.output.splitlines()
    assert head.split()[:2] == ["index", "count"]
    assert [line.split()[:2] for line in lines] == (
        [[f"{row},{column}", "0"] for row in range(3) for column in range(2)] if axis == 1 else []
    )


def test_arrays_of_a_store_that_have_numbers(tmp_path: Path) -> None:
    store = str(tmp_path / "s.b2z")
    with blosc2.TreeStore(store, mode="w") as tree:
        tree["/g/x"] = np.arange(6.0)
        tree["/names"] = np.array(["a", "b"])
    result = run("stats", store, "--json")
    assert result.exit_code == 0
    assert '"mean": 2.5' in result.stdout
    assert f"{store}/names: <U1, skipped" in result.stderr
    result = run("stats", f"{store}/names")
    assert result.exit_code == 1
    assert "numbers and dates" in result.stderr


def test_records_answer_without_the_elements(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).normal(size=(30, 20))
    values[:3] = np.nan
    values[5, 5] = 0
    b2nd_dask.to_b2nd(values, path, chunks=(10, 10))
    (read,) = told("stats", str(path))
    assert (read["source"], read["records"]["chunks"]) == ("elements", 0)
    assert "--add" in run("stats", str(path)).output
    (found,) = told("stats", "--add", str(path))
    assert found["source"] == "records"
    assert found["records"]["chunks"] == found["records"]["of"] == 6
    for name in ("count", "nan", "zeros", "min", "max"):
        assert found[name] == read[name]
    assert found["mean"] == pytest.approx(np.nanmean(values))
    text = run("stats", str(path)).output
    assert "6 of 6 chunks" in text
    assert "std      - (not in the statistics of a frame; --read computes it)\n" in text
    (again,) = told("stats", "--read", str(path))
    assert again["std"] == read["std"]
    # nothing is read: nobody sees damage of the elements
    raw = bytearray(path.read_bytes())
    raw[b2nd_dask.open_b2nd(path).cbytes // 2] ^= 1
    path.write_bytes(raw)
    assert run("stats", str(path)).exit_code == 0
    assert run("stats", "--read", str(path)).exit_code == 1


def test_a_frame_that_cannot_have_records_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in "abc":
        b2nd_dask.to_b2nd(np.arange(20.0), tmp_path / f"{name}.b2nd", chunks=(10,))
    resized = blosc2.open(str(tmp_path / "a.b2nd"), mode="a")
    resized.resize((12,))
    del resized
    result = run("stats", "--add", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.count("a.b2nd: its shape is (12,)") == 1
    stats = {
        name: b2nd_dask.open_b2nd(tmp_path / f"{name}.b2nd", verify=False).stats for name in "abc"
    }
    assert stats["a"] is None
    assert [stats[name] is not None for name in "bc"] == [True, True]


@pytest.mark.parametrize("dtype", ["M8[s]", ">i2", "?", "c8", "m8[D]"])
def test_records_say_what_elements_say(tmp_path: Path, dtype: str) -> None:
    path = str(tmp_path / "a.b2nd")
    values = np.arange(-5, 35).astype("i8").astype(dtype).reshape(8, 5)
    b2nd_dask.to_b2nd(values, path, chunks=(3, 2), stats=True)
    (found,) = told("stats", path)
    (read,) = told("stats", "--read", path)
    assert (found["source"], read["source"]) == ("records", "elements")
    for name in ("count", "nan", "zeros", "min", "max", "mean"):
        assert found[name] == read[name]


def test_packed_numbers_are_told_as_they_are_stored(tmp_path: Path) -> None:
    packing = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}
    ds = xr.Dataset({"t": ("x", [10.5, np.nan]), "z": ("x", [1.0, np.nan], {"_FillValue": np.nan})})
    encoding = {"t": packing | {"dtype": "i2"}}
    b2nd_dask.to_b2nd(ds, tmp_path / "d.b2d", encoding=encoding, stats=True)
    t, z = told("stats", str(tmp_path / "d.b2d"))
    assert (t["min"], t["max"], t["nan"], t["packing"]) == (-1, 1, 0, packing)
    assert (z["min"], z["nan"], z["packing"]) == (1, 1, {})
    text = run("stats", str(tmp_path / "d.b2d")).output
    assert "int16, as stored (scale_factor 0.5, add_offset 10.0, _FillValue -1)\n" in text
    assert "float64\n" in text
    assert "min      -1 (_FillValue: missing elements)\n" in text
    assert "max      1\n" in text


@pytest.mark.parametrize("how", [[], ["--read"]])
def test_records_of_a_damaged_frame_are_not_told(tmp_path: Path, how: list[str]) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=100, stats=True)
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    result = run("stats", str(path), *how)
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert "max" not in result.output
    with pytest.raises(ValueError, match="statistics"):
        b2nd_dask.plot.chunk_map(path, "max")


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=100, cparams={"clevel": 0})
    raw = bytearray(path.read_bytes())
    raw[raw.index(np.arange(200.0, 300).tobytes())] ^= 1
    path.write_bytes(raw)
    result = run("stats", str(path))
    assert result.exit_code == 1
    assert f"{path}: chunk 2: " in result.stderr
