"""Figures are drawn without a window, and closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from b2nd_dask import to_b2nd


@pytest.fixture(autouse=True)
def _figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mpl.use("agg")
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # a tenth of a second for each move of a slider that nobody sees; savefig draws nevertheless
    monkeypatch.setattr(FigureCanvasAgg, "draw_idle", lambda self: None)

    yield
    pyplot.close("all")


@pytest.fixture
def values() -> np.ndarray:
    found = np.random.default_rng(3).integers(0, 9, (40, 60)).astype("f8")
    found[:10] = 0
    found[10:20, :30] = np.nan
    found[10:20, 30:45] = 7.5
    return found


@pytest.fixture
def path(tmp_path: Path, values: np.ndarray) -> Path:
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(10, 15), blocks=(5, 15))
    return tmp_path / "x.b2nd"
