"""What a user keeps under a name, and is no array, is never replaced."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from b2nd_dask import convert, to_b2nd
from tests.forked import run_forked


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
    with pytest.raises(FileExistsError, match=r"thesis\.txt" if marker else "no dataset"):
        convert(source, target, overwrite=True)
    assert (target / "chapters" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "x.npy"]


def test_a_dataset_keeps_it(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="extra xarray")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="no dataset"):
        to_b2nd(xarray.Dataset({"a": ("t", np.arange(3.0))}), tmp_path / "home", mode="w")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["x.b2d", "x.zarr"])
def test_arrays_are_replaced(tmp_path: Path, name: str) -> None:
    pytest.importorskip("zarr", reason="extra convert")
    source, target = tmp_path / "x.npy", tmp_path / name
    for count in (12.0, 5.0):
        np.save(source, np.arange(count))
        convert(source, target, overwrite=True, check=True)


@pytest.mark.parametrize("name", ["1", "uv.lock", "a.b2nd", "a.b2d/dataset.json", "dataset.json/7"])
def test_a_directory_that_is_no_dataset(tmp_path: Path, name: str) -> None:
    xarray = pytest.importorskip("xarray", reason="extra xarray")
    mine = tmp_path / "home" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    with pytest.raises(FileExistsError, match="dataset"):
        to_b2nd(xarray.Dataset({"a": ("t", np.arange(3.0))}), tmp_path / "home", mode="w")
    assert mine.read_text() == "years of work"


@pytest.mark.parametrize("name", ["notes.b2nd", "notes.b2z", "notes.npy", "notes.h5", "notes.zarr"])
def test_a_file_without_arrays(tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "x.npy", tmp_path / name
    np.save(source, np.arange(12.0))
    target.write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no arrays"):
        convert(source, target, overwrite=True)
    assert target.read_text() == "years of work"


def test_a_whole_is_not_replaced_by_its_part(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="extra xarray")
    path = tmp_path / "a.b2d"
    to_b2nd(xarray.Dataset({"a": ("t", np.arange(3.0)), "b": ("t", np.arange(3))}), path)
    (tmp_path / "link").symlink_to(path)
    for source in (f"{path}::a", f"{path}/a.b2nd", f"{path}/a", f"{tmp_path}/link/a.b2nd"):
        with pytest.raises(ValueError, match="lie in each other"):
            convert(source, path, target_format="b2d", overwrite=True)
    with pytest.raises(ValueError, match="lie in each other"):
        convert(path, path / "inner.zarr")
    convert(path, path, overwrite=True)
    assert sorted(each.name for each in path.glob("*.b2nd")) == ["a.b2nd", "b.b2nd"]


def test_one_dataset_of_a_file_does_not_replace_the_others(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="extra convert")
    np.save(tmp_path / "x.npy", np.arange(12.0))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["other"] = np.arange(3)
    with pytest.raises(ValueError, match="would remove the others"):
        convert(tmp_path / "x.npy", f"{tmp_path}/a.h5::/c", overwrite=True)
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file) == ["other"]


@pytest.mark.parametrize("name", ["x.b2d", "x.b2nd", "x.npy"])
def test_what_a_link_leads_to_is_replaced(tmp_path: Path, name: str) -> None:
    pytest.importorskip("xarray", reason="extra convert")
    source, real, link = tmp_path / "s.npz", tmp_path / "disk" / name, tmp_path / f"link-{name}"
    real.parent.mkdir()
    link.symlink_to(real)
    for count in (12.0, 5.0):
        np.savez(source, x=np.arange(count))
        # a link to nothing makes what it leads to
        convert(source, link, overwrite=True, check=True)
    assert link.is_symlink()
    assert [each.name for each in real.parent.iterdir()] == [name]


def test_what_a_killed_append_left_is_replaced(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="extra xarray")
    path, ds = tmp_path / "a.b2d", xarray.Dataset({"a": ("t", np.arange(3.0))})
    to_b2nd(ds, path)
    (path / ".a.b2nd.0123456789abcdef.staging").mkdir()
    (path / ".a.b2nd.0123456789abcdef.staging" / "lock").touch()
    (path / ".dataset.json.new").touch()
    xarray.testing.assert_identical(to_b2nd(ds * 2, path, mode="w").compute(), ds * 2)


def _to_a_full_disk(folder: str) -> str:
    # no file may be longer, as if there were no more room
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with pytest.raises(OSError, match="File too large"):
        convert(f"{folder}/x.b2nd", f"{folder}/x.npy")
    return "went on"


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("xarray", reason="extra convert")
    to_b2nd(np.zeros(1 << 20), tmp_path / "x.b2nd")
    assert run_forked(_to_a_full_disk, str(tmp_path)) == "went on"
    assert [each.name for each in tmp_path.iterdir()] == ["x.b2nd"]
