"""Grouped reductions of frames by flox equal those of dask arrays in memory."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, to_b2nd

if TYPE_CHECKING:
    from pathlib import Path

flox = pytest.importorskip("flox", reason="of the extra interop")
pytest.importorskip("xarray", reason="of the extra xarray")

#: The other axes have enough elements that NumPy reduces even a run of one position.
SHAPE = (26, 64, 70)
RNG = np.random.default_rng(5)


def _made(dtype: str) -> Any:
    values = RNG.normal(0, 30, SHAPE)
    if dtype in ("f4", "f8"):
        values[RNG.random(SHAPE) < 0.3] = np.nan
        values[:, :9, :9] = np.nan
        values[3:6, 20], values[6:9, 21] = np.inf, -np.inf
    return values.astype(dtype) if dtype in ("f4", "f8") else np.abs(values).astype(dtype)


VALUES = {dtype: _made(dtype) for dtype in ("f4", "f8", "i2", "u1", "?")}
#: Groups along the first axis: neighbours, repeated, single elements, and some without a group.
LABELS = {
    "halves": np.repeat([0, 1], 13),
    "months": np.repeat(np.arange(6) % 3, [5, 5, 3, 5, 5, 3]),
    "days": np.arange(26) % 7,
    "none": np.where(np.arange(26) % 5 == 4, np.nan, np.arange(26) // 9),
}
FUNCS = ("sum", "nansum", "mean", "nanmean", "count", "max", "nanmax", "min", "nanmin", "nanvar")


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("grouped")
    for dtype, values in VALUES.items():
        to_b2nd(values, folder / f"{dtype.strip('?') or 'bool'}.b2nd", chunks=(8, 64, 70))
    return {dtype: folder / f"{dtype.strip('?') or 'bool'}.b2nd" for dtype in VALUES}


def _outcome(array: Any, labels: Any, **options: Any) -> Any:
    """The result, or the text of flox's error, such as that for a missing fill value."""
    try:
        # sums of infinite numbers
        with np.errstate(all="ignore"):
            return flox.groupby_reduce(array, labels, **options)[0].compute(scheduler="sync")
    except Exception as error:  # noqa: BLE001 - of flox, for both arrays
        return repr(error)


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_equal_to_flox_of_arrays_in_memory(frames: dict[str, Path], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(VALUES)))
    labels = LABELS[data.draw(st.sampled_from(list(LABELS)))]
    options: dict[str, Any] = {
        "func": data.draw(st.sampled_from(FUNCS)),
        "engine": data.draw(st.sampled_from([None, "numpy", "flox"])),
        "min_count": data.draw(st.sampled_from([None, 2])),
    }
    if data.draw(st.booleans()):
        # some groups are absent
        options |= {"expected_groups": np.arange(8), "fill_value": np.nan}
    if options["func"] not in ("sum", "nansum"):
        options["min_count"] = None
    lengths = data.draw(st.sampled_from([8, 26, (3, 10, 13)]))
    method = data.draw(st.sampled_from([None, "map-reduce", "cohorts", "blockwise"]))
    x = from_b2nd(frames[dtype], chunks=(lengths, 64, 70))
    values = da.from_array(VALUES[dtype], chunks=x.chunks)
    if data.draw(st.booleans()) and dtype != "?":
        x, values = x * 2 + 1, values * 2 + 1
    if data.draw(st.booleans()):
        # a table of groups for the last axis, with few elements in a run
        x, values, labels = x.transpose(1, 0, 2), values.transpose(1, 0, 2), np.arange(70) % 4
    else:
        x, values = x.transpose(1, 2, 0), values.transpose(1, 2, 0)
    got, want = (_outcome(each, labels, method=method, **options) for each in (x, values))
    if isinstance(want, str):
        assert got == want
        return
    # flox adds float32 in float32: up to 26 numbers below 400, which may cancel
    atol = 2e-3 if dtype == "f4" else 1e-9
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=atol)
    assert got.dtype == want.dtype


def test_labels_of_two_axes(frames: dict[str, Path]) -> None:
    labels = np.arange(64 * 70).reshape(64, 70) // 900
    want, _ = flox.groupby_reduce(VALUES["f8"], labels, func="nanmean")
    got, _ = flox.groupby_reduce(from_b2nd(frames["f8"]), labels, func="nanmean")
    np.testing.assert_allclose(got.compute(), want)
    rows = np.arange(26 * 64).reshape(26, 64) // 100
    x = from_b2nd(frames["f8"]).transpose(2, 0, 1)
    want, _ = flox.groupby_reduce(VALUES["f8"].transpose(2, 0, 1), rows, func="nansum", axis=2)
    got, _ = flox.groupby_reduce(x, rows, func="nansum", axis=2)
    np.testing.assert_allclose(got.compute(), want)


def test_all_axes_have_groups(tmp_path: Path) -> None:
    series = RNG.normal(size=60_000)
    x = to_b2nd(series, tmp_path / "series.b2nd", chunks=20_000)
    labels = np.arange(60_000) // 5_000 % 4
    for func in ("nansum", "count", "max"):
        want, _ = flox.groupby_reduce(series, labels, func=func)
        got, _ = flox.groupby_reduce(x, labels, func=func)
        np.testing.assert_allclose(got.compute(), want)


def test_sums_of_many_floats_are_exact(tmp_path: Path) -> None:
    values = (280 + RNG.normal(size=(400_000, 3))).astype("f4")
    x = to_b2nd(values, tmp_path / "long.b2nd", chunks=(150_000, 3))
    labels = np.arange(400_000) // 100_000 % 2
    want = np.stack([values[labels == n].mean(0, dtype="f8") for n in range(2)], axis=-1)
    got, _ = flox.groupby_reduce(x.T, labels, func="nanmean")
    np.testing.assert_allclose(got.compute(), want, rtol=3e-7)


@pytest.mark.parametrize("func", ["nansum", "nanmax", "count"])
def test_floats_to_integers(frames: dict[str, Path], func: str) -> None:
    x, labels = from_b2nd(frames["i2"]) * 1.5, LABELS["months"]
    got, want = (
        flox.groupby_reduce(each.transpose(1, 2, 0), labels, func=func, dtype="i8")[0].compute()
        for each in (x, da.from_array(VALUES["i2"] * 1.5, chunks=x.chunks))
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_of_xarray(frames: dict[str, Path], scheduler: str) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    months = ("time", LABELS["months"])
    arrays = [
        xr.DataArray(data, dims=("time", "y", "x"), coords={"month": months})
        for data in (from_b2nd(frames["f4"]), VALUES["f4"])
    ]
    got, want = (one.groupby("month").mean().transpose("month", "y", "x") for one in arrays)
    with dask.config.set(scheduler=scheduler):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    finite = (one.where(np.isfinite(one)) for one in arrays)
    got, want = (one.groupby("month") - one.groupby("month").mean() for one in finite)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("func", ["sum", "mean", "max"])
def test_resampled(frames: dict[str, Path], func: str) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    days = ("time", np.datetime64("2020-01-01", "ns") + np.arange(26) * np.timedelta64(1, "D"))
    got, want = (
        getattr(
            xr.DataArray(data, dims=("time", "y", "x"), coords={"time": days}).resample(time="5D"),
            func,
        )().transpose("time", "y", "x")
        for data in (from_b2nd(frames["f4"]), VALUES["f4"])
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.dtype == want.dtype


@pytest.mark.parametrize(
    ("labels", "method", "func"),
    [
        ("months", "map-reduce", "nanmean"),
        ("halves", "blockwise", "nanmean"),
        ("halves", "blockwise", "nansum"),
        ("halves", "blockwise", "nanmax"),
    ],
)
def test_kernels_reduce_the_blocks(
    frames: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    labels: str,
    method: Any,
    func: str,
) -> None:
    caplog.set_level("DEBUG", "b2nd_dask")
    x = from_b2nd(frames["f8"]).transpose(1, 2, 0)
    got, _ = flox.groupby_reduce(x, LABELS[labels], func=func, method=method)
    (optimized,) = dask.optimize(got)
    assert any("groupby" in m and "lowered by reductions" in m for m in caplog.messages)
    again = pickle.loads(pickle.dumps(optimized))
    np.testing.assert_array_equal(again.compute(), optimized.compute())
    with dask.config.set({"b2nd_dask.optimize": False}):
        plain, _ = flox.groupby_reduce(x, LABELS[labels], func=func, method=method)
        np.testing.assert_allclose(optimized.compute(), plain.compute())
