"""What is no dataset, no array and no zarr is never replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from b2nd_dask import convert, to_b2nd

pytest.importorskip("h5py", reason="extra convert")
pytest.importorskip("zarr", reason="extra convert")
xarray = pytest.importorskip("xarray", reason="extra xarray")

DATASET = xarray.Dataset({"a": ("t", np.arange(3.0))})


def _all_of(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file()
    }


def _refused_and_kept(target: Path, source: Path, match: str) -> None:
    """Neither a dataset nor a conversion replaces a target; nothing beside it changes."""
    before = _all_of(target.parent)
    for write in (
        lambda: to_b2nd(DATASET, target, mode="w"),
        lambda: convert(source, target, overwrite=True),
    ):
        with pytest.raises(FileExistsError, match=match):
            write()
        assert _all_of(target.parent) == before


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(12.0))
    return tmp_path / "x.npy"


@pytest.mark.parametrize(
    "names",
    [("1", "2", "3"), ("uv.lock", "yarn.lock"), ("c",), ("run/1", "run/2"), ("dataset.json", "7")],
)
def test_a_directory_that_is_none_is_kept(tmp_path: Path, source: Path, names) -> None:
    target = tmp_path / "mail.b2d"
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("kept")
    _refused_and_kept(target, source, r"mail\.b2d")


def test_a_directory_of_frames_is_kept_and_the_error_says_what_to_do(
    tmp_path: Path, source: Path
) -> None:
    target = tmp_path / "frames.b2d"
    target.mkdir()
    for name in ("a", "b"):
        to_b2nd(np.arange(5), target / f"{name}.b2nd")
    to_b2nd(DATASET, target / "inner.b2d")
    _refused_and_kept(target, source, r"no dataset\.json.*move it away yourself")


def test_digits_belong_to_arrays_of_zarr_alone(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "x.zarr"
    convert(source, target)
    (target / "c" / "0").rename(target / "c" / "thesis")
    with pytest.raises(FileExistsError, match="thesis"):
        convert(source, target, overwrite=True)
    group = tmp_path / "g.b2d"
    to_b2nd(DATASET, group)
    convert(group, tmp_path / "g.zarr")
    convert(group, tmp_path / "g.zarr", overwrite=True)
    (tmp_path / "g.zarr" / "2024").write_text("kept")
    with pytest.raises(FileExistsError, match="2024"):
        convert(group, tmp_path / "g.zarr", overwrite=True)


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_of_both_versions_is_replaced(tmp_path: Path, source: Path, version: int) -> None:
    zarr = pytest.importorskip("zarr", reason="extra convert")
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, separator in (("dots", "."), ("folders", "/")):
        encoding = {"name": "v2" if version == 2 else "default", "separator": separator}
        array = group.create_array(
            f"inner/{name}", shape=(4, 4), chunks=(2, 2), dtype="f4", chunk_key_encoding=encoding
        )
        array[...] = 1
    group.create_array("one", shape=(), dtype="f4")[...] = 2
    convert(source, path, overwrite=True)
    assert zarr.open(path).shape == (12,)


def test_an_empty_directory_is_replaced(tmp_path: Path, source: Path) -> None:
    (tmp_path / "new.b2d").mkdir()
    convert(source, tmp_path / "new.b2d", overwrite=True)
    (tmp_path / "ds.b2d").mkdir()
    to_b2nd(DATASET, tmp_path / "ds.b2d", mode="w")


def _as_text(path: Path) -> None:
    path.write_text("years of work")


def _as_document(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", "years of work")


@pytest.mark.parametrize("fill", [_as_text, _as_document])
@pytest.mark.parametrize("name", ["x.b2nd", "x.b2d", "x.b2z", "x.h5", "x.npy", "x.npz", "x.zarr"])
def test_a_file_that_is_no_array_is_kept(tmp_path: Path, source: Path, name: str, fill) -> None:
    target = tmp_path / f"thesis-{name}"
    fill(target)
    before = _all_of(tmp_path)
    with pytest.raises(FileExistsError, match=r"is not replaced"):
        convert(source, target, overwrite=True)
    if name != "x.b2nd":
        with pytest.raises(FileExistsError, match="is not replaced"):
            to_b2nd(DATASET, target, mode="w")
    assert _all_of(tmp_path) == before


@pytest.mark.parametrize("name", ["x.b2nd", "x.b2d", "x.b2z", "x.h5", "x.npy", "x.npz", "x.zarr"])
def test_a_pipe_is_kept(tmp_path: Path, source: Path, name: str):
    target = tmp_path / f"pipe-{name}"
    os.mkfifo(target)
    with pytest.raises(FileExistsError, match=r"is not replaced"):
        convert(source, target, overwrite=True)
    with pytest.raises(FileExistsError, match=r"is not replaced"):
        to_b2nd(np.ones(3) if name == "x.b2nd" else DATASET, target, mode="w")
    assert target.is_fifo()


@pytest.mark.parametrize("name", ["x.nc", "x.npy", "x.npz", "x.zarr", "x.zarr.zip"])
def test_a_dataset_replaces_no_arrays_of_other_formats(tmp_path: Path, source: Path, name: str):
    target = tmp_path / "there" / name
    target.parent.mkdir()
    convert(source, target)
    before = _all_of(target.parent)
    with pytest.raises(FileExistsError, match=r"is not replaced"):
        to_b2nd(DATASET, target, mode="w")
    assert _all_of(target.parent) == before
    # a conversion names the format
    convert(source, target, overwrite=True)


@pytest.mark.parametrize("name", ["x.b2nd", "x.b2z", "x.h5", "x.npy", "x.npz", "x.zarr.zip"])
def test_empty_files_and_arrays_are_replaced(tmp_path: Path, source: Path, name: str) -> None:
    target = tmp_path / name
    if target != source:
        target.touch()
        convert(source, target, overwrite=True)
        convert(source, target, overwrite=True)
    else:
        convert(source, tmp_path / "other.npy")
        convert(source, tmp_path / "other.npy", overwrite=True)


def test_what_an_append_left_that_was_killed_is_replaced_too(tmp_path: Path) -> None:
    target = tmp_path / "ds.b2d"
    to_b2nd(DATASET, target)
    left = target / ".a.b2nd.0123456789abcdef.staging"
    left.mkdir()
    (left / "lock").touch()
    (target / ".dataset.json.new").write_text("{")
    to_b2nd(DATASET, target, mode="w")
    assert not left.exists()
    (target / ".a.b2nd.kept").write_text("kept")
    with pytest.raises(FileExistsError, match="kept"):
        to_b2nd(DATASET, target, mode="w")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", ["ds.b2d", "ds.b2z"])
def test_a_link_is_written_through(tmp_path: Path, name: str, there: bool) -> None:
    """As to_b2nd of an array does; also where it leads to nothing yet."""
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / name
    if there:
        to_b2nd(DATASET, link)
        link.rename(real)
    link.symlink_to(real)
    with pytest.raises(FileExistsError, match='mode="w" replaces it'):
        to_b2nd(DATASET + 1, link)
    assert real.exists() == there
    to_b2nd(DATASET + 2, link, mode="w")
    assert link.is_symlink()
    assert real.is_dir() == (name == "ds.b2d")
    with xarray.open_dataset(link, engine="b2nd") as found:
        xarray.testing.assert_equal(found.load(), DATASET + 2)
    assert [each.name for each in real.parent.iterdir()] == ["real"]


@pytest.mark.parametrize("name", ["x.b2nd", "x.b2d", "x.h5", "x.zarr", "x.zarr.zip", "y.npy"])
def test_convert_writes_through_links(tmp_path: Path, source: Path, name: str) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real", tmp_path / name
    link.symlink_to(real)
    with pytest.raises(FileExistsError, match="--overwrite"):
        convert(source, link)
    for _ in range(2):
        convert(source, link, overwrite=True, check=True)
        assert link.is_symlink()
        assert real.is_dir() == (name in ("x.b2d", "x.zarr"))
    convert(link, tmp_path / "back.npy", overwrite=True)
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), np.arange(12.0))


def test_a_link_to_something_else_is_kept(tmp_path: Path, source: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "ds.b2d").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(FileExistsError, match=r"holds no (arrays|frames)"):
        to_b2nd(DATASET, tmp_path / "ds.b2d", mode="w")
    with pytest.raises(FileExistsError, match=r"holds no (arrays|frames)"):
        convert(source, tmp_path / "ds.b2d", overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_without_locks_datasets_are_still_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "ds.b2d"
    to_b2nd(DATASET, path)
    to_b2nd(DATASET + 1, path, mode="w")
    xarray.testing.assert_equal(xarray.open_dataset(path, engine="b2nd").load(), DATASET + 1)
    with pytest.raises(OSError, match="no locks"):
        to_b2nd(DATASET, path, mode="a", append_dim="t")
