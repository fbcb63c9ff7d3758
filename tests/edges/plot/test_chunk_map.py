"""The map of chunks has the colours of what the chunks are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import blosc2
import fsspec
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot
from matplotlib.figure import Figure

import b2nd_dask
from b2nd_dask import from_b2nd, open_b2nd, plot, to_b2nd
from b2nd_dask.edges.display.chunk_values import KINDS


def colour(code: int) -> list[int]:
    return [*bytes.fromhex(KINDS[code].light[1:]), 255]


def picture(ax) -> np.ndarray:
    """Colours of the cells: the numbers are an image over that of the kinds."""
    found = np.array(ax.images[0].get_array())
    for image in ax.images[1:]:
        known = ~np.ma.getmaskarray(image.get_array())
        found[known] = image.to_rgba(image.get_array(), bytes=True)[known]
    return found


def kinds_of(path: Path) -> np.ndarray:
    frame = blosc2.open(str(path))
    codes = [info.special.value for info in frame.schunk.iterchunks_info()]
    grid = [-(-n // c) for n, c in zip(frame.shape, frame.chunks, strict=True)]
    return np.array(codes).reshape(grid)


def test_colours_are_the_kinds_of_the_chunks(path: Path) -> None:
    found, kinds = picture(plot.chunk_map(path)), kinds_of(path)
    assert set(kinds.reshape(-1)) == {0, 1, 2, 3}
    for cell in np.ndindex(kinds.shape):
        assert found[cell].tolist() == colour(kinds[cell])


def test_anything_that_is_one_frame(path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    x = from_b2nd(path)
    frame = open_b2nd(path)
    expected = picture(plot.chunk_map(str(path)))
    for given in (frame, path.read_bytes(), x, x[3:] + 1, xarray.DataArray(x, dims=("y", "x"))):
        np.testing.assert_array_equal(picture(plot.chunk_map(given)), expected)
    import dask.array as da

    for given, message in ((da.ones(3), "reads no frames"), (np.ones(3), "reads no frames")):
        with pytest.raises(ValueError, match=message):
            plot.chunk_map(given)


def test_arrays_of_dask_array(path: Path, values: np.ndarray) -> None:
    pytest.importorskip("dask_array", reason="an extra")
    x = from_b2nd(path, array_type="dask-array")
    expected = picture(plot.chunk_map(path))
    for given in (x, xr.DataArray(x)):
        np.testing.assert_array_equal(picture(plot.chunk_map(given)), expected)
        pixels = plot.thumbnail(given).images[0].get_array()
        np.testing.assert_array_equal(pixels.filled(np.nan), values)
    stacked = plot.slices(x[None]).axes[0].images[0].get_array()
    np.testing.assert_array_equal(stacked.filled(np.nan), values)


def test_given_axes_are_drawn_in(path: Path) -> None:
    figure = Figure()
    ax = figure.subplots()
    before = pyplot.get_fignums()
    assert plot.chunk_map(path, ax=ax) is ax
    assert pyplot.get_fignums() == before


def test_legend_counts_the_chunks(path: Path) -> None:
    texts = [text.get_text() for text in plot.chunk_map(path).get_legend().get_texts()]
    assert texts == [
        "stored 9 (56.2 %)",
        "zeros 4 (25 %)",
        "one value 1 (6.25 %)",
        "NaN 2 (12.5 %)",
    ]


@pytest.mark.parametrize("by", ["cbytes", "ratio"])
def test_numbers_are_those_of_the_chunks(path: Path, by: str) -> None:
    ax = plot.chunk_map(path, by)
    frame = blosc2.open(str(path))
    kinds = kinds_of(path)
    sizes = np.array([len(frame.schunk.get_chunk(n)) for n in range(kinds.size)], float)
    numbers = sizes if by == "cbytes" else 1200 / sizes
    data = numbers[kinds.reshape(-1) == 0]
    norm = mpl.colors.Normalize(data.min(), data.max())
    expected = mpl.colormaps["viridis"](norm(numbers.reshape(kinds.shape)), bytes=True)
    np.testing.assert_array_equal(picture(ax)[kinds == 0], expected[kinds == 0])
    # the others are pale, and none of these colours
    assert (picture(ax)[kinds != 0][:, :3].min(axis=1) > 150).all()


def test_codecs(tmp_path: Path) -> None:
    path = str(tmp_path / "x.b2nd")
    array = blosc2.zeros(
        (30,),
        dtype="i8",
        chunks=(10,),
        blocks=(10,),
        urlpath=path,
        cparams={"codec": blosc2.Codec.LZ4},
    )
    array[:10] = np.arange(10)
    array[10:20] = np.random.default_rng(0).integers(0, 2**62, 10)
    texts = [text.get_text() for text in plot.chunk_map(path, "codec").get_legend().get_texts()]
    assert texts == ["zeros 1 (33.3 %)", "lz4 1 (33.3 %)", "stored as is 1 (33.3 %)"]


def test_panels_of_more_axes(tmp_path: Path) -> None:
    values = np.zeros((4, 6, 6), "i4")
    values[1, :3, 3:] = values[3] = np.arange(9).reshape(3, 3).repeat(2)[:9].reshape(3, 3).max()
    values[3] += np.arange(36).reshape(6, 6).astype("i4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1, 3, 3))
    ax = plot.chunk_map(tmp_path / "x.b2nd")
    found = picture(ax).reshape(-1, 4)
    kinds = kinds_of(tmp_path / "x.b2nd")
    for code in np.unique(kinds):
        count = (found == colour(code)).all(axis=1).sum()
        assert count == (kinds == code).sum()
    assert [text.get_text() for text in ax.texts] == ["axis 0: 0", "1", "2", "3"]


@pytest.mark.parametrize("shape", [(), (5,), (500,), (0, 3), (1, 1, 1), (2, 3, 4, 5), (2,) * 6])
def test_any_shape_is_drawn(tmp_path: Path, shape: tuple[int, ...]) -> None:
    frame = open_b2nd(
        blosc2.asarray(np.ones(shape), chunks=(1,) * len(shape) if 0 not in shape else None)
    )
    ax = plot.chunk_map(frame)
    ax.figure.savefig(tmp_path / "x.png")
    drawn = (picture(ax)[..., 3] > 0).sum() if frame.nchunks else 0
    assert drawn == frame.nchunks


def test_a_million_chunks(tmp_path: Path) -> None:
    blosc2.zeros(
        (8000, 16000), dtype="u1", chunks=(8, 8), blocks=(8, 8), urlpath=str(tmp_path / "z.b2nd")
    )
    ax = plot.chunk_map(tmp_path / "z.b2nd")
    assert max(picture(ax).shape) <= 1024
    assert "a cell: up to 1 x 2 chunks" in ax.get_xlabel()


def test_chunks_of_a_store_are_not_asked_for(path: Path) -> None:
    fsspec.filesystem("memory").pipe("/map/x.b2nd", path.read_bytes())
    remote = "memory://map/x.b2nd"
    plot.chunk_map(remote, "ratio")
    with pytest.raises(ValueError, match=r"memory://map/x\.b2nd: codecs are in chunk headers"):
        plot.chunk_map(remote, "codec")


def test_names_from_files_are_no_formulas(tmp_path: Path) -> None:
    to_b2nd(np.ones((4, 4)), tmp_path / "$\\frac$.b2nd", vlmeta={"dims": ["$\\oops{$", "\x1b"]})
    plot.chunk_map(tmp_path / "$\\frac$.b2nd").figure.savefig(tmp_path / "x.png")


def test_unknown_by() -> None:
    with pytest.raises(ValueError, match="by='size'; a map shows one of 'kind', 'cbytes'"):
        plot.chunk_map("x.b2nd", "size")


def test_without_matplotlib(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (plot.chunk_map, plot.compression, plot.thumbnail):
        with pytest.raises(ImportError, match=r"pip install 'b2nd-dask\[plot\]'"):
            draw(path)


@pytest.mark.slow
def test_importing_the_package_imports_neither_extras_nor_what_uses_them() -> None:
    code = """
import sys, b2nd_dask
late = ("cli", "convert", "datasets", "demo", "plot", "display.pages")
print([name for name in late if f"b2nd_dask.edges.{name}" in sys.modules])
b2nd_dask.plot.chunk_map
b2nd_dask.convert
print([name for name in ("h5py", "matplotlib", "zarr") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n") == ["[]", "[]", ""]
    assert b2nd_dask.plot is plot


@pytest.mark.parametrize("shape", [(20, 3), (3, 20), (3, 3)])
def test_ticks_are_numbers_of_chunks(tmp_path: Path, shape: tuple[int, int]) -> None:
    to_b2nd(np.ones(shape), tmp_path / "x.b2nd", chunks=(3, 3))
    ax = plot.chunk_map(tmp_path / "x.b2nd")
    for ticks, count in ((ax.get_yticks(), shape[0]), (ax.get_xticks(), shape[1])):
        assert 0 in ticks
        assert set(ticks) <= set(range(-9, 99)), count


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 6, 6), (1, 2, 2), (1, 200, 3)])
def test_names_of_panels_are_beside_the_picture(tmp_path: Path, shape: tuple[int, ...]) -> None:
    ax = plot.chunk_map(open_b2nd(blosc2.asarray(np.ones(shape), chunks=(1, 2, 2))))
    figure = ax.figure
    figure.canvas.draw()
    title = ax._left_title.get_window_extent()
    cells = picture(ax)[..., 3] > 0
    assert len(ax.texts) == shape[0]
    for text in ax.texts:
        where = text.get_window_extent()
        corners = ax.transData.inverted().transform(where.get_points())
        (left, bottom), (right, top) = corners
        rows = slice(max(round(top), 0), max(round(bottom) + 1, 0))
        assert not cells[rows, max(round(left), 0) : round(right) + 1].any()
        assert where.y1 <= title.y0


def test_statistics_of_times_are_times(tmp_path: Path) -> None:
    days = np.arange("2020-01-01", "2020-04-10", dtype="M8[D]")
    to_b2nd(days, tmp_path / "x.b2nd", chunks=(25,), stats=True)
    figure = plot.chunk_map(tmp_path / "x.b2nd", "min").figure
    figure.canvas.draw()
    (bar,) = (axes for axes in figure.axes if axes.get_label() == "<colorbar>")
    labels = [text.get_text() for text in bar.get_yticklabels()]
    assert labels == [str(np.datetime64(round(tick), "D")) for tick in bar.get_yticks()]


@pytest.mark.parametrize("dtype", ["M8[ns]", ">M8[us]", "M8[Y]", "m8[25s]", "u8", "i8"])
def test_the_first_and_last_values_of_a_dtype_have_labels(tmp_path: Path, dtype: str) -> None:
    if dtype == "u8":
        values = np.array([2**64 - 2, 2**64 - 1], dtype)
    else:
        ends = np.array([1 - 2**63, 2**63 - 1])
        values = ends.view(dtype.lstrip(">")).astype(dtype)
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1,), stats=True)
    for by in ("min", "max", "mean"):
        figure = plot.chunk_map(tmp_path / "x.b2nd", by).figure
        figure.draw_without_rendering()
        labels = [tick.get_text() for ax in figure.axes[1:] for tick in ax.get_yticklabels()]
        assert "NaT" not in labels
        # matplotlib has ticks beyond the scale, too
        if dtype[0] in "Mm>" and by != "mean":
            native = values.astype(values.dtype.newbyteorder("="))
            assert {str(native[0]), str(native[1])} <= set(labels)


def test_the_legend_names_what_has_no_statistic(tmp_path: Path) -> None:
    values = np.random.default_rng(2).random((40, 40))
    values[:10] = 0
    values[10:20, :10], values[35, 35] = np.nan, np.inf
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(10, 10), stats=True)
    found = plot.chunk_map(tmp_path / "x.b2nd", "max").get_legend()
    assert found is not None
    texts = [text.get_text() for text in found.get_texts()]
    assert texts == ["stored 1 (6.25 %)", "NaN 1 (6.25 %)"]


@pytest.mark.parametrize(("dtype", "problem"), [("U3", "elements of <U3"), ("c16", "complex")])
def test_statistics_that_have_no_colour(tmp_path: Path, dtype: str, problem: str) -> None:
    to_b2nd(np.zeros(5, dtype), tmp_path / "x.b2nd", stats=dtype == "c16")
    with pytest.raises(ValueError, match=problem):
        plot.chunk_map(tmp_path / "x.b2nd", "mean")


def test_colours_are_the_statistics_of_the_chunks(tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(size=(30, 20))
    values[:10, :10], values[10:20, :10] = 0, np.nan
    path = tmp_path / "x.b2nd"
    to_b2nd(values, path, chunks=(10, 10))
    with pytest.raises(ValueError, match="add_stats"):
        plot.chunk_map(path, "mean")
    b2nd_dask.add_stats(path)
    cells = values.reshape(3, 10, 2, 10).transpose(0, 2, 1, 3).reshape(3, 2, 100)
    for by, wanted in (
        ("mean", cells.mean(-1)),
        ("min", cells.min(-1)),
        ("max", cells.max(-1)),
        ("nans", np.isnan(cells).sum(-1)),
        ("nonzeros", np.count_nonzero(cells, axis=-1)),
    ):
        found = picture(plot.chunk_map(path, by))
        low, high = np.nanmin(wanted), np.nanmax(wanted)
        expected = mpl.colormaps["viridis"]((wanted - low) / (high - low), bytes=True)
        known = np.isfinite(wanted)
        np.testing.assert_allclose(found[known].astype(int), expected[known].astype(int), atol=3)
        # the kind of what has none
        assert known.all() or (found[1, 0] != found[known]).any(-1).all()


def test_titles_say_that_packed_numbers_are_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "x.b2nd"
    array = xr.DataArray(np.ones((4, 6)), dims=("y", "x"), attrs={"scale_factor": 0.5})
    array.b2nd.to_b2nd(path, stats=True)
    kinds, greatest = (plot.chunk_map(path, by) for by in ("kind", "max"))
    assert kinds.get_title(loc="left") == "x.b2nd: kinds of chunks"
    assert greatest.get_title(loc="left") == "x.b2nd, as stored: max of chunks"
    assert plot.thumbnail(path).get_title(loc="left").startswith("x.b2nd, as stored")
