"""Planes of a stack: the right ones, read one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backend_bases import KeyEvent
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from b2nd_dask import open_b2nd, plot, to_b2nd
from b2nd_dask.edges.plot.sources import Planes, source_of
from b2nd_dask.frame.array import Frame
from tests.counting import bytes_read

STACK = np.random.default_rng(0).normal(size=(12, 20, 30))


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    to_b2nd(STACK, tmp_path / "s.b2nd", chunks=(4, 10, 10), vlmeta={"dims": ["t", "y", "x"]})
    return tmp_path / "s.b2nd"


def shown(figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_planes_beside_each_other(stack: Path) -> None:
    figure = plot.slices(stack, "t", count=4)
    numbers = [0, 4, 7, 11]
    for ax, number in zip(figure.axes[:4], numbers, strict=True):
        assert ax.get_title() == f"t: {number}"
        np.testing.assert_array_equal(ax.images[0].get_array(), STACK[number])
        assert ax.images[0].get_clim() == (STACK[numbers].min(), STACK[numbers].max())


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axes(stack: Path, axis: int) -> None:
    figure = plot.slices(stack, axis, count=1)
    np.testing.assert_array_equal(shown(figure), np.take(STACK, 0, axis))


def test_the_slider_shows_planes(stack: Path) -> None:
    figure = plot.slices(stack, interactive=True)
    np.testing.assert_array_equal(shown(figure), STACK[6])
    slider = figure.b2nd_browser.slider
    for number in (0, 11, 3):
        slider.set_val(number)
        np.testing.assert_array_equal(shown(figure), STACK[number])
        assert figure.axes[0].get_title() == f"t: {number}"
    low, high = figure.axes[0].images[0].get_clim()
    assert (low, high) == (STACK[[6, 0, 11, 3]].min(), STACK[[6, 0, 11, 3]].max())


def test_keys_move_the_slider(stack: Path) -> None:
    figure = plot.slices(stack, interactive=True)
    for key, number in (("right", 7), ("left", 6), ("pageup", 11), ("pagedown", 1), ("a", 1)):
        figure.canvas.callbacks.process(
            "key_press_event", KeyEvent("key_press_event", figure.canvas, key)
        )
        np.testing.assert_array_equal(shown(figure), STACK[number])


def test_a_plane_is_read_once_and_its_neighbours_before(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, own = [], Frame.__getitem__
    monkeypatch.setattr(
        Frame, "__getitem__", lambda self, index: read.append(index[0]) or own(self, index)
    )
    figure = plot.slices(open_b2nd(stack), interactive=True)
    browser = figure.b2nd_browser
    browser.slider.set_val(7)
    browser.slider.set_val(6)
    # the one after these, so that they are read
    browser._requested(9).result()
    assert len(read) == len(set(read))
    assert {6, 7} <= set(read) <= {5, 6, 7, 8, 9}


def test_a_plane_that_could_not_be_read_is_read_again(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Frame, index: object) -> None:
        raise OSError("gone")

    figure = plot.slices(open_b2nd(stack), interactive=True)
    with monkeypatch.context() as patched:
        patched.setattr(Frame, "__getitem__", refuse)
        with pytest.raises(OSError, match="gone"):
            figure.b2nd_browser.show(0)
    figure.b2nd_browser.show(0)
    np.testing.assert_array_equal(shown(figure), STACK[0])


def test_one_plane_of_the_file_is_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 100, 200))
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(16, 100, 200), blocks=(1, 100, 200))
    planes = Planes(source_of(tmp_path / "x.b2nd"), 0)
    nbytes, plane = bytes_read(lambda: planes.read(20))
    np.testing.assert_array_equal(plane, values[20])
    assert nbytes < 2 * plane.nbytes < values.nbytes / 20


def test_one_plane_of_a_data_array_that_is_not_loaded_is_read(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    values = np.random.default_rng(0).normal(size=(64, 100, 200))
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(16, 100, 200), blocks=(1, 100, 200))
    with xarray.open_dataarray(tmp_path / "x.b2nd", engine="b2nd") as x:
        nbytes, figure = bytes_read(lambda: plot.slices(x, count=1))
        np.testing.assert_array_equal(shown(figure), values[0])
    assert nbytes < values.nbytes / 10


def test_wide_planes_are_read_in_steps(tmp_path: Path) -> None:
    values = np.arange(2 * 3000 * 4).reshape(2, 3000, 4)
    planes = Planes(source_of(values), 0)
    np.testing.assert_array_equal(planes.read(1), values[1, ::3])


def test_labels_of_data_arrays(stack: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    x = xarray.DataArray(STACK, dims=("time", "lat", "lon"), coords={"time": np.arange(12) * 0.5})
    figure = plot.slices(x, "time", count=3)
    assert figure.axes[1].get_title() == "time: 3"
    assert plot.slices(x, "lat", count=1).axes[0].get_title() == "lat: 0"


@pytest.mark.parametrize(
    ("coordinate", "texts"),
    [
        ([20250130, 20250131, 20250132], ["20250130", "20250131", "20250132"]),
        (np.array([2**64 - 10**17, 2**64 - 1], "u8"), [str(2**64 - 10**17), str(2**64 - 1)]),
        (np.arange(2460000.5, 2460003), ["2460000.5", "2460001.5", "2460002.5"]),
        (np.arange(1, 4) * 0.1, ["0.1", "0.2", "0.3"]),
        (np.arange(1, 4, dtype="f4") / 10, ["0.1", "0.2", "0.3"]),
    ],
    ids=["integers", "uint64", "days", "float64", "float32"],
)
def test_names_with_brackets_and_coordinates_with_many_digits(coordinate, texts) -> None:
    xarray = pytest.importorskip("xarray", reason="an extra")
    t = ("t [UTC]", coordinate, {"units": "d"})
    x = xarray.DataArray(np.ones((len(texts), 4, 5)), {"t [UTC]": t}, ("t [UTC]", "y", "x"))
    figure = plot.slices(x, "t [UTC]")
    titles = [ax.get_title() for ax in figure.axes[: len(texts)]]
    assert titles == [f"t [UTC] [d]: {text}" for text in texts]


def test_dims_of_frames_may_have_brackets(tmp_path: Path) -> None:
    to_b2nd(STACK, tmp_path / "s.b2nd", vlmeta={"dims": ["y", "t [UTC]", "x"]})
    figure = plot.slices(tmp_path / "s.b2nd", "t [UTC]", count=1)
    np.testing.assert_array_equal(shown(figure), STACK[:, 0])


def test_a_given_figure_and_limits(stack: Path) -> None:
    figure = Figure()
    assert plot.slices(stack, figure=figure, count=2, vmin=0, vmax=1) is figure
    assert figure.axes[0].images[0].get_clim() == (0, 1)


@pytest.mark.parametrize("norm", ["log", LogNorm()], ids=["name", "norm"])
def test_planes_have_a_common_norm(norm: object) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    figure = plot.slices(values, norm=norm)
    figure.draw_without_rendering()
    limits = {ax.images[0].get_clim()[1] for ax in figure.axes[:2]}
    assert limits == {23.0}


def test_a_first_plane_without_numbers_sets_no_limits() -> None:
    values = np.stack([np.full((4, 5), 9.0), np.full((4, 5), np.nan), np.full((4, 5), 8.0)])
    figure = plot.slices(values, interactive=True)
    for number in (0, 2):
        figure.b2nd_browser.slider.set_val(number)
    assert figure.axes[0].images[0].get_clim() == (8, 9)


def test_planes_of_nan_and_of_bools(tmp_path: Path) -> None:
    plot.slices(np.ones((3, 4, 5), bool)).savefig(tmp_path / "x.png")
    figure = plot.slices(np.full((3, 4, 5), np.nan), interactive=True)
    figure.b2nd_browser.slider.set_val(2)
    figure.savefig(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("values", "how", "error", "message"),
    [
        (np.ones((2, 3)), {"axis": 2}, ValueError, "axis=2: axis 2 is out of bounds"),
        (np.ones((2, 3, 4, 5)), {}, ValueError, "not a stack of planes"),
        (np.ones((2, 3, 0)), {}, ValueError, "no elements"),
        (
            np.ones((2, 3, 4)),
            {"axis": "z"},
            ValueError,
            "no axis is called 'z'; the axes are axis 0",
        ),
        (np.ones((2, 3, 4)), {"count": 0}, ValueError, "from 1 to 100"),
        (np.ones((2, 3, 4), "S1"), {}, TypeError, "have no colour"),
    ],
)
def test_what_is_no_stack(values, how, error, message) -> None:
    with pytest.raises(error, match=message):
        plot.slices(values, **how)


def test_the_advice_for_more_axes_works() -> None:
    x = np.ones((2, 2, 3, 4, 5))
    for given in (x, x[:, :1], x[..., None]):
        with pytest.raises(ValueError, match=r"give 3 axes, as x\[0, 0\]$"):
            plot.slices(given)
        plot.slices(given[0, 0], count=1)


def test_axes_of_planes_have_the_numbers_of_the_elements() -> None:
    browsed = plot.slices(np.zeros((2, 3000, 4)), interactive=True).axes[0]
    assert (browsed.get_ylim(), browsed.get_xlim()) == ((2999.5, -0.5), (-0.5, 3.5))
    xarray = pytest.importorskip("xarray", reason="an extra")
    coords = {"y": np.arange(3000) * 10.0, "x": np.arange(4.0)}
    x = xarray.DataArray(np.zeros((2, 3000, 4)), coords, ("t", "y", "x"))
    for figure in (plot.slices(x, interactive=True), plot.slices(x, count=1)):
        # coordinates grow upwards
        assert figure.axes[0].get_ylim() == (-5, 29995)


@pytest.mark.parametrize("origin", ["lower", "upper"])
def test_the_users_origin_turns_the_ticks_with_the_rows(origin):
    volume = np.zeros((3, 100, 80))
    volume[:, 10, 5] = 1
    shown = plot.slices(volume, interactive=True, origin=origin).axes[0].images[0]
    left, right, bottom, top = shown.get_extent()
    first, last = (top, bottom) if origin == "upper" else (bottom, top)
    assert (first, last) == (-0.5, 99.5)
    assert (left, right) == (-0.5, 79.5)
