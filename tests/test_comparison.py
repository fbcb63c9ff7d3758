"""Statements of docs/comparison.md about other packages, checked with these packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest

import b2nd_dask

pytestmark = pytest.mark.slow
VALUES = np.arange(1000, dtype="i4")


@pytest.fixture
def zarr() -> Any:
    return pytest.importorskip("zarr", reason="it is compared with")


@pytest.fixture
def h5py() -> Any:
    return pytest.importorskip("h5py", reason="it is compared with")


def flip(path: Path) -> None:
    """Change the element 500, which is not compressed."""
    stored = path.read_bytes()
    at = stored.index(VALUES[500:510].tobytes())
    path.write_bytes(stored[:at] + b"\xff" + stored[at + 1 :])


def plain() -> dict[str, Any]:
    return {"clevel": 0, "filters": [blosc2.Filter.NOFILTER]}


def test_checksums_by_default(tmp_path: Path, zarr: Any, h5py: Any) -> None:
    b2nd_dask.to_b2nd(VALUES, tmp_path / "a.b2nd", cparams=plain())
    flip(tmp_path / "a.b2nd")
    with pytest.raises(b2nd_dask.ChecksumError):
        b2nd_dask.open_b2nd(tmp_path / "a.b2nd")[:]
    blosc2.asarray(VALUES, urlpath=str(tmp_path / "b.b2nd"), cparams=plain())
    flip(tmp_path / "b.b2nd")
    assert (blosc2.open(str(tmp_path / "b.b2nd"))[:] != VALUES).sum() == 1
    zarr.create_array(tmp_path / "c.zarr", data=VALUES, compressors=None)
    flip(tmp_path / "c.zarr/c/0")
    assert (zarr.open_array(tmp_path / "c.zarr")[:] != VALUES).sum() == 1
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(1000,))
    flip(tmp_path / "d.h5")
    with h5py.File(tmp_path / "d.h5") as file:
        assert (file["x"][:] != VALUES).sum() == 1


def test_an_array_that_is_being_written(tmp_path: Path, zarr: Any, h5py: Any) -> None:
    """A reader opens the array when half of it is written."""
    seen = []

    def look(block: np.ndarray) -> np.ndarray:
        seen.append((tmp_path / "a.b2nd").exists())
        return block

    x = da.from_array(VALUES, chunks=500).map_blocks(look, dtype="i4", meta=VALUES[:0])
    b2nd_dask.to_b2nd(x, tmp_path / "a.b2nd")
    assert seen == [False, False]
    half = blosc2.zeros((1000,), dtype="i4", urlpath=str(tmp_path / "b.b2nd"))
    half[:500] = VALUES[:500]
    assert blosc2.open(str(tmp_path / "b.b2nd"))[:].tolist()[498:502] == [498, 499, 0, 0]
    half = zarr.create_array(tmp_path / "c.zarr", shape=(1000,), dtype="i4", chunks=(500,))
    half[:500] = VALUES[:500]
    assert zarr.open_array(tmp_path / "c.zarr")[498:502].tolist() == [498, 499, 0, 0]
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", shape=(1000,), dtype="i4")[:500] = VALUES[:500]
        file.flush()
        assert (tmp_path / "d.h5").stat().st_size > 0


def test_strings_of_variable_length(tmp_path: Path, h5py: Any, zarr: Any) -> None:
    texts = np.array(["a", "bcd"], dtype=object)
    with pytest.raises((TypeError, ValueError)):
        b2nd_dask.to_b2nd(texts, tmp_path / "a.b2nd")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", data=texts, dtype=h5py.string_dtype())
        assert [text.decode() for text in file["x"][:]] == ["a", "bcd"]
    array = zarr.create_array(tmp_path / "c.zarr", shape=(2,), dtype=str)
    array[:] = texts
    assert array[:].tolist() == ["a", "bcd"]
