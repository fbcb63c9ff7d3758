"""The land mask: streamed out of its archive, kept as a frame with constant chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest

from b2nd_dask.edges.cli.demo import land_bands, write_frame


def save_sea(path: Path, sea: np.ndarray) -> Path:
    np.savez_compressed(path, mask=sea, lat=np.arange(len(sea)))
    return path


@pytest.fixture
def land() -> np.ndarray:
    """Two rows of three chunks of 4 x 4 and cut-off ones: sea, land, coast."""
    land = np.zeros((7, 14), bool)
    land[:, 4:8] = True
    land[1, 9] = True
    land[6, 13] = True
    return land


@pytest.mark.parametrize("height", [1, 4, 7, 100])
def test_bands_are_the_inverted_mask(tmp_path: Path, land: np.ndarray, height: int) -> None:
    npz = save_sea(tmp_path / "mask.npz", ~land)
    bands = list(land_bands(npz, height))
    assert max(map(len, bands)) <= height
    np.testing.assert_array_equal(np.concatenate(bands), land)


@pytest.mark.parametrize(
    "sea",
    [np.zeros(4, bool), np.zeros((4, 4), "u1"), np.zeros((4, 3), bool, order="F")],
    ids=["1-d", "not bool", "fortran"],
)
def test_another_mask_is_refused(tmp_path: Path, sea: np.ndarray) -> None:
    npz = save_sea(tmp_path / "mask.npz", sea)
    with pytest.raises(ValueError, match=r"mask\.npz: expected a 2-d boolean array"):
        next(land_bands(npz, 4))


def test_frame_equals_the_mask_and_constant_chunks_hold_no_data(
    tmp_path: Path, land: np.ndarray
) -> None:
    path = tmp_path / "land.b2nd"
    npz = save_sea(tmp_path / "mask.npz", ~land)
    write_frame(land_bands(npz, 4), path, 4)
    frame = blosc2.open(str(path))
    np.testing.assert_array_equal(frame[:], land)
    kinds = Counter(chunk.special.name for chunk in frame.schunk.iterchunks_info())
    # The land of the lower row is cut off by the edge: its padding makes it an ordinary chunk.
    assert kinds == {"ZERO": 4, "VALUE": 1, "NOT_SPECIAL": 3}
    assert [file.name for file in tmp_path.glob("land*")] == ["land.b2nd"]


def test_an_interrupted_writer_leaves_no_frame(tmp_path: Path, land: np.ndarray) -> None:
    path = tmp_path / "land.b2nd"

    def interrupted() -> Iterator[np.ndarray]:
        yield land[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_frame(interrupted(), path, 4)
    assert not path.exists()
    write_frame(iter([land[:4], land[4:]]), path, 4)
    np.testing.assert_array_equal(blosc2.open(str(path))[:], land)
