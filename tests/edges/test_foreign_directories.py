"""A directory that holds a user's other files is never replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from b2nd_dask import convert, to_b2nd


@pytest.mark.parametrize("name", ["home.b2d", "home.zarr", "home.h5", "home.npy", "home.b2nd"])
@pytest.mark.parametrize("marker", [None, "dataset.json", "zarr.json"])
def test_convert_keeps_it(tmp_path: Path, name: str, marker: str | None) -> None:
    pytest.importorskip("zarr", reason="extra convert")
    pytest.importorskip("h5py", reason="extra convert")
    source, target = tmp_path / "x.npy", tmp_path / name
    np.save(source, np.arange(12.0))
    (target / "chapters").mkdir(parents=True)
    (target / "chapters" / "thesis.txt").write_text("years of work")
    if marker:
        (target / marker).write_text("{}")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        convert(source, target, overwrite=True)
    assert (target / "chapters" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "x.npy"]


def test_a_dataset_keeps_it(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="extra xarray")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        to_b2nd(xarray.Dataset({"a": ("t", np.arange(3.0))}), tmp_path / "home", mode="w")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["x.b2d", "x.zarr"])
def test_arrays_are_replaced(tmp_path: Path, name: str) -> None:
    pytest.importorskip("zarr", reason="extra convert")
    source, target = tmp_path / "x.npy", tmp_path / name
    for count in (12.0, 5.0):
        np.save(source, np.arange(count))
        convert(source, target, overwrite=True, check=True)
