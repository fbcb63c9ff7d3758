"""The demo on a small made-up Earth, against NumPy; and, when slow tests run, on the real one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from matplotlib.image import imread

from b2nd_dask.edges.cli import demo
from b2nd_dask.edges.cli.demo import write_frame
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.from_b2nd import from_b2nd

ROOT = Path(__file__).parents[2]
CHUNK, CELL = 12, 3


@pytest.fixture
def earth() -> np.ndarray:
    """Land in 6 x 12 chunks: sea, a coast, and a cap of solid land around the south pole."""
    rng = np.random.default_rng(7)
    land = np.zeros((72, 144), bool)
    land[20:45, 30:70] = rng.random((25, 40)) < 0.6
    land[60:] = True
    return land


@pytest.fixture
def npz(tmp_path: Path, earth: np.ndarray) -> Path:
    path = tmp_path / "mask.npz"
    np.savez_compressed(path, mask=~earth)
    return path


@pytest.fixture
def frame_path(tmp_path: Path, earth: np.ndarray) -> Path:
    path = tmp_path / "earth.b2nd"
    bands = iter(np.split(earth, len(earth) // CHUNK))
    write_frame(bands, path, CHUNK)
    return path


@pytest.fixture
def cover(frame_path: Path) -> demo.LandCover:
    return demo.LandCover(*dask.compute(*demo.land_cover(from_b2nd(frame_path), CELL)))


def chunk_means(land: np.ndarray, size: int) -> np.ndarray:
    rows, columns = land.shape
    return land.reshape(rows // size, size, columns // size, size).mean(axis=(1, 3))


@pytest.mark.parametrize("rows", [1, 2, 7, 21600])
def test_row_areas_cover_the_sphere(rows: int) -> None:
    areas = demo.row_areas(rows)
    assert areas.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(areas, areas[::-1], rtol=1e-6)
    if rows > 100:
        middles = np.deg2rad(90 - (np.arange(rows) + 0.5) * 180 / rows)
        np.testing.assert_allclose(areas, np.cos(middles) / np.cos(middles).sum(), rtol=1e-6)


def test_cover_equals_numpy(cover: demo.LandCover, earth: np.ndarray) -> None:
    np.testing.assert_allclose(cover.by_latitude, earth.mean(axis=1), rtol=1e-15)
    np.testing.assert_allclose(cover.map, chunk_means(earth, CELL), rtol=1e-15)


def test_share_is_weighted_by_area(cover: demo.LandCover, earth: np.ndarray) -> None:
    edges = np.sin(np.deg2rad(np.linspace(90, -90, len(earth) + 1)))
    weights = np.repeat(-np.diff(edges)[:, None], earth.shape[1], axis=1)
    assert cover.share == pytest.approx(np.average(earth, weights=weights), rel=1e-12)
    cap = (1 - np.sin(np.deg2rad(60))) / 2
    assert cover.share_south_of(-60) == pytest.approx(cap, rel=1e-12)


def test_each_chunk_with_data_is_read_once(
    frame_path: Path, earth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = []
    read_axes = FrameReference.read_axes

    def counted(self: FrameReference, axes: tuple[range, ...], *others: Any) -> object:
        chunk = tuple(along.start // CHUNK for along in axes)
        # special chunks have a kind other than 0, and are not decoded
        regions.extend([chunk] * int(self.chunk_kinds()[chunk] == 0))
        return read_axes(self, axes, *others)

    monkeypatch.setattr(FrameReference, "read_axes", counted)
    dask.compute(*demo.land_cover(from_b2nd(frame_path), CELL))
    # Land chunks are counted: that they repeat one value is written in their own header.
    assert len(regions) == np.count_nonzero(chunk_means(earth, CHUNK))


def test_known_answer_stands_beside_ours() -> None:
    rows = np.full(180, 0.25)
    rows[150:] = 0.5
    cover = demo.LandCover(rows, np.zeros((1, 1)))
    text = demo.describe_land(cover)
    assert "26.67% of the Earth" in text
    assert "about 29.2%" in text
    assert "South of 60 S the mask has 17.1 million km2" in text


def test_picture_is_drawn(tmp_path: Path, cover: demo.LandCover) -> None:
    path = tmp_path / "land.png"
    demo.save_picture(cover, path)
    pixels = imread(path)
    assert pixels.shape[:2] == (520, 1200)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10


@pytest.fixture
def small(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo run on the small Earth."""
    monkeypatch.setattr(demo, "find_mask", lambda: npz)
    monkeypatch.setattr(demo, "CHUNK", CHUNK)
    monkeypatch.setattr(demo, "CELL", CELL)


@pytest.mark.usefixtures("small")
def test_run_leaves_frame_and_picture_and_keeps_the_frame(
    tmp_path: Path, earth: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    cover = demo.run_demo(output, overwrite=False)
    out = capsys.readouterr().out
    assert sorted(path.name for path in output.iterdir()) == [
        "land-map.b2nd",
        "land.b2nd",
        "land.png",
    ]
    np.testing.assert_allclose(cover.by_latitude, earth.mean(axis=1))
    assert "Writing the land mask" in out
    means = chunk_means(earth, CHUNK)
    # which chunks need not be read, and why
    coast, land = ((means > 0) & (means < 1)).sum(), (means == 1).sum()
    kinds = f"{coast} stored, {72 - coast - land} zeros, {land} one value"
    assert f"chunk kinds     {kinds}\n" in out
    assert "shape           72 x 144\n" in out

    inode = (output / "land.b2nd").stat().st_ino
    demo.run_demo(output, overwrite=False)
    assert (output / "land.b2nd").stat().st_ino == inode
    assert "Writing the land mask" not in capsys.readouterr().out
    demo.run_demo(output, overwrite=True)
    assert "Writing the land mask" in capsys.readouterr().out


def test_missing_extra_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_mask", lambda: None)
    with pytest.raises(ImportError, match=r"global-land-mask is not installed.*b2nd-dask\[demo\]"):
        demo.run_demo(tmp_path / "out", overwrite=False)
    assert not (tmp_path / "out").exists()


FULL_RUN = """
import sys
from pathlib import Path
from typing import Any
from b2nd_dask import open_b2nd
from b2nd_dask.edges.cli.demo import run_demo
from benchmarks.memory import peak_resident
cover = run_demo(Path(sys.argv[1]), overwrite=True)
kinds = open_b2nd(Path(sys.argv[1], "land.b2nd")).info["special chunks"].split()
print(cover.share, kinds[0], kinds[2], peak_resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("global_land_mask") is None, reason="global-land-mask is missing"
)
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked as on Linux")
def test_the_real_mask_takes_less_memory_than_the_array(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_RUN, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    share, constant, chunks, peak = done.stdout.splitlines()[-1].split()
    assert float(share) == pytest.approx(0.28905, abs=1e-5)
    assert (int(constant), int(chunks)) == (1095, 1800)
    assert int(peak) < 21600 * 43200 / 2
