"""The panels of `compression` say what python-blosc2 says of the chunks."""

from __future__ import annotations

from pathlib import Path

import blosc2
import numpy as np
import pytest
from matplotlib.figure import Figure

from b2nd_dask import open_b2nd, plot, to_b2nd


def test_panels(path: Path) -> None:
    figure = plot.compression(path)
    ratios, kinds, largest = figure.axes
    array = blosc2.open(str(path))
    infos = [info.special.name for info in array.schunk.iterchunks_info()]
    sizes = {
        n: len(array.schunk.get_chunk(n)) for n, name in enumerate(infos) if name == "NOT_SPECIAL"
    }
    assert sum(bar.get_height() for bar in ratios.patches) == len(sizes)
    edges = [bar.get_x() for bar in ratios.patches if bar.get_height()]
    assert min(edges) == pytest.approx(1200 / max(sizes.values()))
    shares = [round(bar.get_width(), 2) for bar in kinds.patches]
    assert shares == [56.25, 25.0, 6.25, 12.5]
    widths = [bar.get_width() for bar in largest.patches]
    assert widths == sorted(sizes.values(), reverse=True)
    first = max(sizes, key=sizes.get)
    assert largest.get_yticklabels()[0].get_text() == str(divmod(first, 4))


def test_several_frames_in_a_given_figure(path: Path, tmp_path: Path) -> None:
    to_b2nd(np.arange(1000), tmp_path / "y.b2nd", chunks=100)
    figure = Figure()
    assert plot.compression([path, open_b2nd(tmp_path / "y.b2nd")], figure=figure) is figure
    figure.savefig(tmp_path / "x.png")
    labels = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert [label.partition("\n")[0] for label in labels] == ["x.b2nd", "y.b2nd"]


def test_frames_without_data(tmp_path: Path) -> None:
    to_b2nd(np.zeros((4, 4)), tmp_path / "z.b2nd")
    figure = plot.compression([tmp_path / "z.b2nd", blosc2.asarray(np.zeros((0, 2)))])
    figure.savefig(tmp_path / "x.png")
    assert figure.axes[0].texts[0].get_text() == "no chunk has data"


@pytest.mark.parametrize("count", [0, 7])
def test_how_many(path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} frames; from 1 to 6"):
        plot.compression([path] * count)


@pytest.mark.parametrize("count", [1, 6])
def test_legends_are_not_over_the_bars(path: Path, count: int) -> None:
    figure = plot.compression([path] * count)
    figure.canvas.draw()
    for axes in figure.axes[:2]:
        legend = axes.get_legend().get_window_extent()
        assert legend.y1 <= axes.xaxis.label.get_window_extent().y0 < axes.bbox.y0
        assert legend.y0 >= 0
