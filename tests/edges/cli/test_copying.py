"""`copy` and `rechunk`: the same elements and metadata, with other layouts."""

from __future__ import annotations

from pathlib import Path

import blosc2
import numpy as np
import pytest
import xarray as xr

import b2nd_dask
from tests.edges.cli.running import run
from tests.servers import HttpServer

VALUES = np.random.default_rng(0).random((40, 30)).round(2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.b2nd"
    b2nd_dask.to_b2nd(VALUES, path, chunks=(10, 15), vlmeta={"units": "K"}, meta={"m": 1})
    return path


def test_a_copy_has_the_bytes_of_the_chunks(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.b2nd"
    result = run("copy", str(source), str(target))
    assert result.exit_code == 0, result.output
    assert f"{target}: verified: all 8 stored chunks are as they were written" in result.output
    old, new = blosc2.open(str(source)), blosc2.open(str(target))
    assert [old.schunk.get_chunk(i) for i in range(8)] == [
        new.schunk.get_chunk(i) for i in range(8)
    ]
    frame = b2nd_dask.open_b2nd(target)
    assert dict(frame.attrs) == {"units": "K"}
    assert dict(frame.meta) == {"m": 1}
    again = run("copy", str(source), str(target))
    assert again.exit_code == 1
    assert again.stderr == (
        f"Error: {target}: the target exists already; give --overwrite to replace it\n"
    )
    assert run("copy", "--overwrite", "--no-verify", str(source), str(target)).exit_code == 0


def test_a_copy_with_another_compression(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "out.b2nd")
    options = ("--codec", "LZ4", "--level", "9", "--filter", "bitshuffle", "--sparse")
    result = run("copy", *options, str(source), target)
    assert result.exit_code == 0, result.output
    frame = b2nd_dask.open_b2nd(target)
    assert frame.cparams.codec is blosc2.Codec.LZ4
    assert frame.cparams.clevel == 9
    assert blosc2.Filter.BITSHUFFLE in frame.cparams.filters
    assert blosc2.Filter.SHUFFLE not in frame.cparams.filters
    assert not frame.contiguous
    assert frame.chunks == (10, 15)
    np.testing.assert_array_equal(blosc2.open(target)[...], VALUES)
    back = str(tmp_path / "back.b2nd")
    assert run("copy", "--contiguous", "--filter", "none", target, back).exit_code == 0
    assert b2nd_dask.open_b2nd(back).cparams.clevel == 9
    assert b2nd_dask.open_b2nd(back).contiguous
    for wrong in (("--codec", "nope"), ("--codec", "ndlz"), ("--filter", "ndmean")):
        result = run("copy", *wrong, str(source), str(tmp_path / "no.b2nd"))
        assert result.exit_code == 2
        assert "zfp" not in result.stderr


def test_into_a_folder_and_out_of_a_store(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run("copy", str(source), str(folder)).exit_code == 0
    np.testing.assert_array_equal(blosc2.open(str(folder / "in.b2nd"))[...], VALUES)
    store = str(tmp_path / "s.b2z")
    with blosc2.TreeStore(store, mode="w") as tree:
        tree["/g/x"] = VALUES
    assert run("copy", f"{store}/g/x", str(tmp_path / "x.b2nd")).exit_code == 0
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "x.b2nd"))[...], VALUES)
    assert run("copy", f"{store}/g/x", str(folder)).exit_code == 0
    np.testing.assert_array_equal(blosc2.open(str(folder / "x.b2nd"))[...], VALUES)


def test_a_url_into_a_folder_has_the_name_without_the_query(
    http_server: HttpServer, tmp_path: Path
) -> None:
    b2nd_dask.to_b2nd(VALUES, http_server.folder / "into-folder.b2nd")
    folder = tmp_path / "folder"
    folder.mkdir()
    done = run("copy", f"{http_server.url}/into-folder.b2nd?token=hush", str(folder))
    assert done.exit_code == 0
    assert "hush" not in done.output
    np.testing.assert_array_equal(b2nd_dask.open_b2nd(folder / "into-folder.b2nd")[...], VALUES)


def test_damage_is_not_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "a.b2nd", tmp_path / "b.b2nd"
    b2nd_dask.to_b2nd(np.arange(1000.0), source, chunks=100, cparams={"clevel": 0})
    raw = bytearray(source.read_bytes())
    raw[raw.index(np.arange(200.0, 300).tobytes())] ^= 1
    source.write_bytes(raw)
    for options in ((), ("--codec", "lz4")):
        result = run("copy", *options, str(source), str(target))
        assert result.exit_code == 1
        assert "chunk 2" in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["a.b2nd"]


def test_rechunk(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "out.b2nd")
    result = run("rechunk", "--chunks", "-1,5", str(source), target)
    assert result.exit_code == 0, result.output
    assert b2nd_dask.open_b2nd(target).chunks == (40, 5)
    np.testing.assert_array_equal(blosc2.open(target)[...], VALUES)
    result = run("rechunk", "--chunks", "4", "--blocks", "2,2", "--overwrite", str(source), target)
    assert result.exit_code == 0, result.output
    assert b2nd_dask.open_b2nd(target).chunks == (4, 4)
    assert b2nd_dask.open_b2nd(target).blocks == (2, 2)
    result = run("rechunk", "--chunks", "3", "--max-mem", "1kB", str(source), target, "--overwrite")
    assert result.exit_code == 1
    assert '--max-mem "1kB" is too little' in result.stderr
    assert "max_mem" not in result.stderr
    for chunks in ("a", "1,2,3"):
        result = run("rechunk", "--chunks", chunks, str(source), str(tmp_path / "no.b2nd"))
        assert result.exit_code in (1, 2)
    assert b2nd_dask.open_b2nd(target).chunks == (4, 4)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    b2nd_dask.to_b2nd(np.arange(3), tmp_path / "a.b2nd")
    result = run("copy", str(tmp_path / "a.b2nd"), f"{tmp_path}/sub/")
    assert result.exit_code == 1
    assert "sub/: the directory does not exist; make it first" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["a.b2nd"]


def test_a_sparse_frame_is_no_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "sparse"
    b2nd_dask.to_b2nd(np.arange(3), target, contiguous=False)
    before = sorted(target.iterdir())
    result = run("copy", str(source), str(target))
    assert (result.exit_code, sorted(target.iterdir())) == (1, before)
    assert "the target exists already" in result.stderr
    assert run("copy", "--overwrite", "--sparse", str(source), str(target)).exit_code == 0
    np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES)


@pytest.mark.parametrize("name", ["in.b2d", "in.b2z"])
@pytest.mark.parametrize("target", ["out.b2d", "out.b2z", "out"])
def test_datasets(tmp_path: Path, name: str, target: str) -> None:
    ds = xr.Dataset(
        {"a": (("t", "x"), VALUES, {"units": "K"}), "b": ("t", np.arange(40))},
        {"x": np.arange(30.0)},
        {"title": "two arrays"},
    )
    path, copied, rechunked = (str(tmp_path / each) for each in (name, target, f"1{target}"))
    ds.b2nd.to_b2nd(path, encoding={"a": {"chunks": (10, 15)}})
    assert run("copy", "--codec", "lz4", path, copied).exit_code == 0
    result = run("rechunk", "--chunks", "40,5", "--max-mem", "100MB", path, rechunked)
    assert result.exit_code == 0, result.output
    for each, chunks in ((copied, (10, 15)), (rechunked, (40, 5))):
        with xr.open_dataset(each, engine="b2nd") as found:
            xr.testing.assert_identical(found, ds)
        assert b2nd_dask.open_b2nd(each, component="a").chunks == chunks
    assert b2nd_dask.open_b2nd(copied, component="a").cparams.codec is blosc2.Codec.LZ4
    assert "it exists; --overwrite replaces it" in run("copy", path, copied).stderr
    assert run("copy", "--sparse", path, copied).exit_code == 2
    result = run("copy", path, str(tmp_path / "one.b2nd"))
    assert result.exit_code == 2
    assert "copy one array of it as SOURCE/NAME" in result.stderr


def test_a_dataset_is_copied_into_a_folder_with_its_statistics(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": ("t", np.arange(40)), "name": ("t", np.array(["x"] * 40))})
    ds.b2nd.to_b2nd(tmp_path / "in.b2d", stats=True)
    (tmp_path / "folder").mkdir()
    for target, found in (("folder", "folder/in.b2d"), ("plain", "plain"), ("plain", "plain")):
        options = ("--overwrite", str(tmp_path / "in.b2d"), str(tmp_path / target))
        assert run("copy", *options).exit_code == 0
        assert b2nd_dask.open_b2nd(tmp_path / found / "a.b2nd").stats.max == 39
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "in.b2d", "plain"]
