"""`map`: cells against the kinds of chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

import b2nd_dask
from b2nd_dask.edges.cli.contents import picture_of
from b2nd_dask.edges.display.chunk_values import GAP, MIXED, chunk_values, layout_for
from b2nd_dask.frame.info import decimal
from tests.edges.cli.running import run
from tests.strategies import SpecialCase, examples, special_cases


@pytest.fixture
def checkered(tmp_path: Path) -> Path:
    """A grid of 2 x 3 chunks, of data, zeros and NaN."""
    path = tmp_path / "a.b2nd"
    values = np.arange(2400.0).reshape(40, 60) + 1
    values[:20, 20:40] = 0
    values[20:, :20] = values[20:, 40:] = np.nan
    b2nd_dask.to_b2nd(values, path, chunks=(20, 20), vlmeta={"dims": ["lat", "[b]lon[/]"]})
    return path


def test_kinds_are_cells(checkered: Path) -> None:
    lines = run("map", str(checkered)).output.splitlines()
    assert lines[1] == "rows lat, columns [b]lon[/]; a cell is a chunk"
    assert lines[2:4] == ["██··██", "░░██░░"]
    assert "█ stored 3 (50 %)" in lines
    assert "░ NaN 2 (33.3 %)" in lines
    assert run("map", "--width", "3", str(checkered)).output.splitlines()[2:4] == ["█·█", "░█░"]


def test_statistics_are_levels(checkered: Path) -> None:
    failed = run("map", "--by", "max", str(checkered))
    assert failed.exit_code == 1
    assert "stats --add PATH" in failed.output
    b2nd_dask.add_stats(checkered)
    lines = run("map", "--by", "max", str(checkered)).output.splitlines()
    # of the zeros the greatest is 0; NaN have none
    assert lines[2:4] == ["▄▄▁▁▅▅", "░░██░░"]
    assert lines[4:] == ["▁ 0 to █ 2.38e+03 max", "░ NaN 2 (33.3 %)"]
    lines = run("map", "--by", "nans", str(checkered)).output.splitlines()
    assert lines[2:4] == ["▁▁▁▁▁▁", "██▁▁██"]


def test_statistics_of_times(tmp_path: Path) -> None:
    days = np.arange("2020-01-01", "2020-04-10", dtype="M8[D]")
    b2nd_dask.to_b2nd(days, tmp_path / "a.b2nd", chunks=(25,), stats=True)
    lines = run("map", "--by", "min", str(tmp_path / "a.b2nd")).output.splitlines()
    assert lines[3] == "▁ 2020-01-01 to █ 2020-03-16 min"


def test_statistics_of_the_first_and_last_times(tmp_path: Path) -> None:
    times = np.array([1 - 2**63, 2**63 - 1]).view("M8[ns]")
    b2nd_dask.to_b2nd(times, tmp_path / "a.b2nd", chunks=(1,), stats=True)
    lines = run("map", "--by", "max", str(tmp_path / "a.b2nd")).output.splitlines()
    assert lines[3] == f"▁ {times[0]} to █ {times[1]} max"


def test_a_dumb_terminal_gets_ascii(checkered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    output = run("map", str(checkered)).output
    assert output.isascii()
    assert output.splitlines()[2:4] == ["##..##", "nn##nn"]


def test_neighbours_share_a_cell(checkered: Path) -> None:
    values = chunk_values(b2nd_dask.open_b2nd(checkered), "kind")
    small = layout_for(values.codes.shape, rows=1, columns=3, doubled=True)
    assert small.step[1:] == (2, 1)
    assert picture_of(values, small)[0].tolist() == [[MIXED, MIXED, MIXED]]


@given(data=st.data())
@examples(25)
def test_cells_of_frames_of_any_shape(data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    case: SpecialCase = data.draw(special_cases(data.draw(st.sampled_from(["zeros", "uninit"]))))
    path = fresh_path()
    case.write(path)
    frame = b2nd_dask.open_b2nd(path)
    values = chunk_values(frame, "kind")
    kinds = values.codes
    rows, columns = data.draw(st.integers(4, 30)), data.draw(st.integers(1, 40))
    layout = layout_for(kinds.shape, rows, columns, doubled=True)
    found, _ = picture_of(values, layout)
    assert found.shape[0] <= rows
    assert found.shape[1] <= columns
    if max(layout.step) == 1:
        # each chunk once, those of panels beside each other in another order
        assert sorted(found[found != GAP].tolist()) == sorted(kinds.reshape(-1).tolist())
    # in the order of the panels each cell stands for a box of chunks
    boxes = kinds.reshape(layout.counts)
    for panel, row, column in np.ndindex(layout.cells):
        top, left = layout.corner(panel)
        at = zip((panel, row, column), layout.step, strict=True)
        inside = set(boxes[tuple(slice(n * s, (n + 1) * s) for n, s in at)].reshape(-1).tolist())
        code = found[top - layout.gap[0] + row, left + column]
        assert inside == {code} or (len(inside) > 1 and code == MIXED)
    assert run("map", "--width", "50", str(path)).exit_code == 0


def test_panels_and_positions(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    values = np.arange(24.0).reshape(3, 2, 4) + 1
    values[1] = 0
    b2nd_dask.to_b2nd(values, path, chunks=(1, 1, 2))
    lines = run("map", str(path)).output.splitlines()
    assert lines[1] == "a panel for each of axis 0; rows axis 1, columns axis 2; a cell is a chunk"
    assert lines[2:4] == ["████  ····  ████"] * 2
    lines = run("map", "--at", "1", str(path)).output.splitlines()
    assert lines[2:4] == ["····"] * 2
    for at, code in {"3": 1, "0,0": 1, "x": 2}.items():
        assert run("map", "--at", at, str(path)).exit_code == code
    lines = run("map", "--width", "3", str(path)).output.splitlines()
    assert lines[1].startswith("a panel for each")
    planes = ["██", "██", "", "··", "··", "", "██", "██"]
    assert [line.rstrip() for line in lines[2:10]] == planes


def test_panels_of_several_positions(tmp_path: Path) -> None:
    values = np.ones((40, 2, 40))
    values[:10] = 0
    b2nd_dask.to_b2nd(values, tmp_path / "a.b2nd", chunks=(1, 1, 1))
    lines = run("map", "--width", "40", str(tmp_path / "a.b2nd")).output.splitlines()
    assert lines[1].startswith("a panel for each 5 chunks of axis 0; rows axis 1")
    assert [line.rstrip() for line in lines[2:10]] == [
        *["·" * 40] * 2,
        "",
        *["·" * 40] * 2,
        "",
        *["▒" * 40] * 2,
    ]


def test_sizes_have_levels(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).random(4000)
    values[:1000] = np.linspace(0, 1, 1000).round(1)
    values[1000:2000] = 0
    b2nd_dask.to_b2nd(values, path, chunks=1000)
    array = blosc2.open(str(path))
    nbytes = sorted(len(array.schunk.get_chunk(number)) for number in (0, 2, 3))
    lines = run("map", "--by", "cbytes", str(path)).output.splitlines()
    assert lines[2:] == [
        "▁▁··████",
        f"▁ {decimal(nbytes[0])} to █ {decimal(nbytes[-1])} compressed",
        "· zeros 1 (25 %)",
    ]
    lines = run("map", "--by", "ratio", str(path)).output.splitlines()
    assert lines[2] == "██··▁▁▁▁"


def test_codecs_have_letters(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    noise = np.random.default_rng(0).integers(0, 255, 4000, "u1")
    noise[:2000] = np.arange(2000) % 7
    blosc2.asarray(noise, chunks=(2000,), urlpath=path, cparams={"codec": blosc2.Codec.LZ4})
    output = run("map", "--by", "codec", path).output
    assert output.splitlines()[2] == "AABB"
    assert "A lz4 1 (50 %)" in output
    assert "B stored as is 1 (50 %)" in output


def test_output_is_a_png(checkered: Path, tmp_path: Path) -> None:
    target = tmp_path / "map.png"
    result = run("map", "--output", str(target), str(checkered))
    assert (result.exit_code, result.output) == (0, f"{target}\n")
    assert imread(target).ndim == 3
    result = run("map", "--output", str(tmp_path / "no" / "map.png"), str(checkered))
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_a_picture_is_of_the_whole_frame(checkered: Path, tmp_path: Path) -> None:
    target = tmp_path / "map.png"
    for option in ("--at", "--width"):
        result = run("map", "--output", str(target), option, "1", str(checkered))
        assert (result.exit_code, target.exists()) == (2, False)
        assert "omit --at and --width" in result.stderr


def test_a_picture_of_an_unknown_kind(checkered: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="of the extra plot")
    result = run("map", "--output", str(tmp_path / "m.xyz"), str(checkered))
    assert result.exit_code == 1
    assert "'xyz' is not supported" in result.stderr
    assert "png" in result.stderr
    assert not (tmp_path / "m.xyz").exists()


@pytest.mark.parametrize("by", ["kind", "cbytes", "min"])
def test_a_frame_without_elements(tmp_path: Path, by: str) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.zeros((3, 0, 5)), path)
    assert run("map", "--by", by, str(path)).output == f"{path}: no chunks\n"
