"""What `Frame.info` counts is what the chunks are."""

from __future__ import annotations

from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest

from b2nd_dask import open_b2nd, plot, to_b2nd
from b2nd_dask.frame import info


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.zeros((4, 20))
    values[1] = 7.5
    values[2] = np.nan
    values[3] = np.arange(20)
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1, 10))
    return tmp_path / "x.b2nd"


def test_kinds_are_those_of_the_headers(path: Path) -> None:
    frame = open_b2nd(path)
    array = blosc2.open(str(path))
    kinds = [one.special.name for one in array.schunk.iterchunks_info()]
    assert kinds.count("VALUE") == kinds.count("NOT_SPECIAL") == 2
    assert frame.info["chunk kinds"] == "2 stored, 2 zeros, 2 NaN, 2 one value"
    assert frame.info["special chunks"] == "6 of 8 (75 %), 2 of them one value"
    # the picture and the page say the same
    pytest.importorskip("matplotlib", reason="an extra")
    legend = [text.get_text() for text in plot.chunk_map(frame).get_legend().get_texts()]
    page = frame._repr_html_()
    for name, count in (("stored", 2), ("zeros", 2), ("NaN", 2), ("one value", 2)):
        assert f"{name} {count} (25 %)" in legend
        assert f"{name} {count} (25 %)" in page


def test_kinds_of_the_index_are_called_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/info/x.b2nd", path.read_bytes())
    expected = "4 stored, 2 zeros, 2 NaN (by the index; headers of chunks were not read)"
    assert open_b2nd("memory://info/x.b2nd").info["chunk kinds"] == expected
    monkeypatch.setattr(info, "MOST_HEADERS", 3)
    assert open_b2nd(path).info["chunk kinds"] == expected


def test_frames_without_stored_chunks(tmp_path: Path) -> None:
    to_b2nd(np.zeros((4, 20)), tmp_path / "z.b2nd", chunks=(1, 10))
    assert open_b2nd(tmp_path / "z.b2nd").info["chunk kinds"] == "8 zeros"
