"""Thumbnails equal NumPy's means, maxima and steps, and read what they need."""

from __future__ import annotations

import math
import re
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from b2nd_dask import from_b2nd, open_b2nd, plot, to_b2nd
from b2nd_dask.edges.plot.elements import _block_sizes, _pixels, _plane
from b2nd_dask.edges.plot.sources import source_of
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


def unknown_rows() -> da.Array:
    return da.ones((3, 4))[da.ones(3) > 0]


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
    # a pixel for each square, also for the smaller ones at the ends
    first = [min(step // 2, (n - 1) % step) for n in values.shape]
    found = pixels(plot.thumbnail(path, size=size, method="nearest"))
    assert found.shape == tuple(-(-n // step) for n in values.shape)
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


def test_a_data_array_that_is_not_loaded_is_read_in_parts(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    values = np.random.default_rng(0).normal(size=(1600, 1600))
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(100, 100), blocks=(10, 100))
    with (
        xarray.open_dataarray(tmp_path / "x.b2nd", engine="b2nd") as x,
        dask.config.set({"scheduler": "synchronous", "array.chunk-size": "1MiB"}),
    ):
        few, _ = bytes_read(lambda: plot.thumbnail(x, size=8, method="nearest"))
        none, _ = bytes_read(lambda: plot.chunk_map(x))
        assert max(few, none) < 0.12 * values.nbytes
        whole, ax = bytes_read(lambda: plot.thumbnail(x, size=8))
        assert whole > 0.8 * values.nbytes
        np.testing.assert_allclose(pixels(ax), expected(values, 200, "mean"))
        blocks, _ = _plane(source_of(x))
        assert blocks.npartitions > 10


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


@pytest.mark.parametrize(
    ("coordinate", "ends"),
    [
        (np.array([0, 2**63, 2**64 - 1], "u8"), (-(2.0**62), 2.0**64 + 2.0**62)),
        (np.array([2**64 - 1, 2**63, 0], "u8"), (2.0**64 + 2.0**62, -(2.0**62))),
        (np.array([-(2**63), 0, 2**63 - 1]), (-1.5 * 2**63, 1.5 * 2**63)),
        (np.array([-126, 0, 126], "i1"), (-189.0, 189.0)),
        # of neighbours beyond the digits of a float, and of times, elements are counted
        (np.array([2**64 - 3, 2**64 - 2, 2**64 - 1], "u8"), (-0.5, 2.5)),
        (np.array([-(2**63), 1 - 2**63, 2 - 2**63]), (-0.5, 2.5)),
        (np.array([1 - 2**63, 0, 2**63 - 1]).view("M8[ns]"), (-0.5, 2.5)),
        (np.array([-(2**63), 0, 2**63 - 1]).view("m8[ns]"), (-0.5, 2.5)),
    ],
    ids=["u8", "u8 falling", "i8", "i1", "last u8", "first i8", "times", "NaT"],
)
def test_coordinates_at_the_ends_of_their_dtype(coordinate, ends) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    x = xarray.DataArray(np.arange(12.0).reshape(4, 3), {"x": coordinate}, ("y", "x"))
    ax = plot.thumbnail(x)
    ax.figure.draw_without_rendering()
    assert ax.images[0].get_extent()[:2] == pytest.approx(ends, rel=0.01)


@pytest.mark.parametrize("first", [-(2**63), 2**63 - 4, 2**64 - 4])
def test_integers_at_the_ends_of_their_dtype(first: int) -> None:
    values = np.array([first, first + 1, first + 2, first + 3], "i8" if first < 2**63 else "u8")
    for method in ("mean", "max", "nearest"):
        ax = plot.thumbnail(np.tile(values, (4, 1)), size=2, method=method)
        ax.figure.draw_without_rendering()
        np.testing.assert_allclose(pixels(ax), float(first))


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
        (np.ones((2, 3, 4)), {}, ValueError, r"\(2, 3, 4\) is not a picture.*plot\.slices"),
        (np.ones(4), {}, ValueError, r"\(4,\) is not a picture; give 2 axes$"),
        (np.ones((0, 4)), {}, ValueError, "no elements"),
        (unknown_rows(), {}, ValueError, r"\(nan, 4\).*compute_chunk_sizes"),
        (np.ma.masked_equal(np.ones((2, 2)), 1), {}, TypeError, r"da\.ma\.filled"),
        (da.ma.masked_equal(da.ones((2, 2)), 1), {}, TypeError, r"da\.ma\.filled"),
        (np.array([["a"]]), {}, TypeError, "have no colour"),
        (np.ones((2, 2), complex), {}, TypeError, r"abs\(x\)"),
        (np.ones((2, 2)), {"method": "median"}, ValueError, "one of 'mean', 'max', 'nearest'"),
        (np.ones((2, 2)), {"size": 0}, ValueError, "at least one pixel"),
    ],
)
def test_what_is_no_picture(given_, how, error, message) -> None:
    with pytest.raises(error, match=message):
        plot.thumbnail(given_, **how)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2, 2, 3, 4), (1, 2, 3, 4), (2, 1, 3, 2, 4)])
def test_the_advice_for_more_axes_works(shape: tuple[int, ...]) -> None:
    x = np.arange(float(math.prod(shape))).reshape(shape)
    with pytest.raises(ValueError, match="is not a picture") as raised:
        plot.thumbnail(x)
    text = str(raised.value)
    zeros = re.findall(r"as x\[([0, ]+)\]", text)
    plot.thumbnail(x[tuple(int(n) for n in zeros[0].split(","))])
    assert ("plot.slices" in text) == (len(np.squeeze(x).shape) == 3)


@pytest.mark.parametrize(
    ("given_", "advice"),
    [
        (np.ones((2, 2), [("t", "M8[s]"), ("a", "f8")]), ["x['a']"]),
        (np.array([["a", "b"]]), []),
        (np.array([[b"a", b"b"]]), []),
        (np.zeros((2, 2), "V3"), []),
        (
            np.zeros((2, 2), "M8[s]"),
            ["x.astype('i8')", "(x - np.datetime64('2000-01-01')) / np.timedelta64(1, 'D')"],
        ),
        (np.zeros((2, 2), "m8[s]"), ["x.astype('i8')", "x / np.timedelta64(1, 's')"]),
        (np.ones((2, 2), complex), ["x.real", "abs(x)"]),
    ],
    ids=["records", "texts", "bytes", "void", "times", "spans", "complex"],
)
def test_the_advice_for_elements_without_colour_works(
    tmp_path: Path, given_: np.ndarray, advice: list[str]
) -> None:
    to_b2nd(given_, tmp_path / "x.b2nd")
    for one in (given_, tmp_path / "x.b2nd"):
        with pytest.raises(TypeError, match="have no colour") as raised:
            plot.thumbnail(one)
        text = str(raised.value)
        assert ("astype" in text) == any("astype" in expression for expression in advice)
        assert ("from_b2nd" in text) == (bool(advice) and one is not given_)
        x = from_b2nd(tmp_path / "x.b2nd")
        for expression in advice:
            assert expression in text
            plot.thumbnail(eval(expression, {"x": x, "np": np}))


@pytest.mark.parametrize("shape", [(10, 100_000), (1000, 1), (1000, 999), (3, 4)])
@pytest.mark.parametrize("method", ["mean", "nearest"])
def test_axes_have_the_numbers_of_the_elements(shape: tuple[int, int], method: str) -> None:
    ax = plot.thumbnail(da.ones(shape, chunks=(1000, 1000)), method=method)
    rows, columns = shape
    assert ax.get_ylim() == (rows - 0.5, -0.5)
    assert ax.get_xlim() == (-0.5, columns - 0.5)
    for ticks in (ax.get_xticks(), ax.get_yticks()):
        assert (ticks == np.round(ticks)).all()


def test_pixels_stand_where_their_elements_are() -> None:
    # the last pixel has one element of ten
    ax = plot.thumbnail(np.arange(91.0 * 91).reshape(91, 91), size=10)
    assert pixels(ax).shape == (10, 10)
    assert ax.images[0].get_extent() == [-0.5, 99.5, 99.5, -0.5]
    assert ax.get_xlim() == (-0.5, 90.5)
    assert plot.thumbnail(np.ones((91, 9)), size=10, extent=(0, 1, 0, 2)).get_xlim() == (0, 1)
