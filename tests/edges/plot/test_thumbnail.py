"""Thumbnails equal NumPy's means, maxima and steps, and read what they need."""

from __future__ import annotations

import math
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from b2nd_dask import from_b2nd, open_b2nd, plot, to_b2nd
from b2nd_dask.edges.plot.thumbnail import _block_sizes, _pixels
from tests.counting import bytes_read
from tests.strategies import examples


def pixels(ax) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def expected(values: np.ndarray, step: int, method: str) -> np.ndarray:
    shape = [-(-n // step) for n in values.shape]
    found = np.empty(shape)
    for cell in np.ndindex(*shape):
        square = values[tuple(slice(n * step, (n + 1) * step) for n in cell)]
        known = square[~np.isnan(square)]
        how = np.mean if method == "mean" else np.max
        found[cell] = how(known) if known.size else np.nan
    return found


@pytest.mark.parametrize("method", ["mean", "max"])
@pytest.mark.parametrize("size", [1, 7, 20, 59, 100])
def test_squares_equal_numpy(path: Path, values: np.ndarray, method: str, size: int) -> None:
    step = -(-60 // size)
    found = pixels(plot.thumbnail(path, size=size, method=method))
    np.testing.assert_allclose(found, expected(values, step, method))


@examples(40)
@given(
    shape=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    chunks=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    step=st.integers(1, 30),
    method=st.sampled_from(["mean", "max"]),
)
def test_any_chunks(shape, chunks, step, method) -> None:
    values = np.random.default_rng(0).integers(0, 50, shape)
    with dask.config.set(scheduler="synchronous"):
        found = _pixels(da.from_array(values, chunks=chunks), step, method)
    np.testing.assert_allclose(found, expected(values.astype(float), step, method))


@examples(60)
@given(
    chunks=st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)),
    step=st.integers(1, 4000),
)
def test_blocks_hold_whole_squares_and_little_else(chunks, step) -> None:
    blocks = _block_sizes(da.zeros(chunks, chunks=chunks, dtype="f8"), step)
    assert all(length % step == 0 and length > 0 for length in blocks)
    assert math.prod(blocks) * 8 <= max(128 << 20, 8 * step**2)


@pytest.mark.parametrize("size", [1, 7, 20, 100])
def test_nearest_is_a_step(path: Path, values: np.ndarray, size: int) -> None:
    step = -(-60 // size)
    first = [min(step // 2, n - 1) for n in values.shape]
    found = pixels(plot.thumbnail(path, size=size, method="nearest"))
    np.testing.assert_array_equal(found, values[first[0] :: step, first[1] :: step])


def test_nearest_reads_what_it_needs(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(1600, 1600))
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(100, 100), blocks=(10, 100))
    frame = open_b2nd(tmp_path / "x.b2nd")
    with dask.config.set(scheduler="synchronous"):
        few, _ = bytes_read(lambda: plot.thumbnail(frame, size=8, method="nearest"))
        whole, _ = bytes_read(lambda: plot.thumbnail(frame, size=8, method="mean"))
    assert whole > 0.8 * values.nbytes
    # 64 blocks of 8 kB, and the file's pages around them
    assert few < 0.12 * values.nbytes


def test_labels_and_coordinates(path: Path, values: np.ndarray) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    coords = {
        "lat": ("lat", np.linspace(-39, 39, 40), {"units": "degrees_north"}),
        "lon": np.arange(60) * 2.0,
    }
    x = xarray.DataArray(from_b2nd(path), dims=("lat", "lon"), coords=coords, name="rain $")
    ax = plot.thumbnail(x, size=30)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("lat [degrees_north]", "lon")
    left, right, bottom, top = ax.images[0].get_extent()
    assert (left, right, bottom, top) == pytest.approx((-1, 119, -40, 40))
    # south is below
    assert ax.images[0].origin == "lower"
    north_first = plot.thumbnail(x[::-1], size=30)
    assert north_first.images[0].origin == "upper"
    assert north_first.images[0].get_extent()[2:] == pytest.approx([-40, 40])
    np.testing.assert_allclose(pixels(north_first), expected(values[::-1], 2, "mean"))


def test_arrays_in_memory_and_planes(values: np.ndarray) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    for given_ in (values, da.from_array(values)[None], xarray.DataArray(values)):
        np.testing.assert_allclose(pixels(plot.thumbnail(given_, size=60)), values)
    assert pixels(plot.thumbnail(np.arange(9.0)[None], size=9)).shape == (1, 9)


def test_axes_and_arguments_of_imshow(path: Path) -> None:
    ax = Figure().subplots()
    assert plot.thumbnail(path, ax=ax, colorbar=False, vmin=-1, vmax=9, cmap="gray") is ax
    assert ax.images[0].get_clim() == (-1, 9)
    assert len(ax.figure.axes) == 1


@pytest.mark.parametrize(
    ("given_", "how", "error", "message"),
    [
        (np.ones((2, 3, 4)), {}, ValueError, r"\(2, 3, 4\) is no picture.*plot\.slices"),
        (np.ones(4), {}, ValueError, r"\(4,\) is no picture, which has two axes$"),
        (np.ones((0, 4)), {}, ValueError, "no elements"),
        (np.array([["a"]]), {}, TypeError, "have no colour"),
        (np.ones((2, 2), complex), {}, TypeError, r"abs\(x\)"),
        (np.ones((2, 2)), {"method": "median"}, ValueError, "one of 'mean', 'max', 'nearest'"),
        (np.ones((2, 2)), {"size": 0}, ValueError, "at least one pixel"),
    ],
)
def test_what_is_no_picture(given_, how, error, message) -> None:
    with pytest.raises(error, match=message):
        plot.thumbnail(given_, **how)
