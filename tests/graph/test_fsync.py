"""`fsync=`: the system calls that wait for the disk, and their order."""

import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import create, open_b2nd, rechunk, to_b2nd

VALUES = np.random.default_rng(3).normal(size=(40, 30))


@pytest.fixture
def calls(monkeypatch):
    """The calls that change files or wait for them, with the names of the files."""
    seen = []

    def watch(name, path_of):
        original = getattr(os, name)

        def watched(*args, **kwargs):
            seen.append((name, path_of(args)))
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, watched)

    def of_descriptor(args):
        return Path(f"/proc/self/fd/{args[0]}").readlink().name

    watch("fsync", of_descriptor)
    watch("pwrite", of_descriptor)
    watch("rename", lambda args: Path(args[1]).name)
    return seen


def synced(calls):
    return [path for name, path in calls if name == "fsync"]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_a_new_frame_waits_for_the_disk_unless_told_not_to(tmp_path, calls, contiguous, there):
    path = tmp_path / "a.b2nd"
    if there:
        to_b2nd(np.zeros(3), path, contiguous=contiguous)
    calls.clear()
    to_b2nd(VALUES, path, mode="w", chunks=(20, 15), contiguous=contiguous, fsync=False)
    assert synced(calls) == []
    np.testing.assert_array_equal(open_b2nd(path)[...], VALUES)
    to_b2nd(VALUES, path, mode="w", chunks=(20, 15), contiguous=contiguous)
    # for a sparse frame: chunks, index, directory
    assert len(synced(calls)) == (2 if contiguous else 4 + 1 + 1 + 1)
    assert synced(calls)[-1] == tmp_path.name


@pytest.mark.parametrize("how", [{"append_axis": 0}, {"region": (slice(0, 40), slice(0, 30))}])
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_change_is_on_the_disk_before_its_switch(tmp_path, calls, contiguous, how):
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(20, 15), contiguous=contiguous)
    ends = []
    for fsync in (True, False):
        calls.clear()
        to_b2nd(VALUES + 1, path, mode="r+", fsync=fsync, **how)
        calls.pop()  # the staging area is given up
        # header or index file: the last that changes
        switch = max(at for at, (name, _) in enumerate(calls) if name != "fsync")
        assert calls[switch][0] == ("pwrite" if contiguous else "rename")
        assert calls[switch - 1][0] == "fsync"
        ends.append([name for name, _ in calls[switch + 1 :]])
    assert ends == [["fsync"], []]
    np.testing.assert_array_equal(open_b2nd(path)[-40:], VALUES + 1)


def test_rechunk(tmp_path, calls):
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=(20, 15))
    calls.clear()
    again = rechunk(tmp_path / "a.b2nd", tmp_path / "b.b2nd", chunks=(10, 30), fsync=False)
    assert synced(calls) == []
    np.testing.assert_array_equal(again.compute(), VALUES)
    rechunk(tmp_path / "a.b2nd", tmp_path / "b.b2nd", chunks=(10, 30), mode="w")
    assert len(synced(calls)) == 2


@pytest.mark.parametrize("name", ["a.b2d", "a.b2z"])
def test_a_dataset(tmp_path, calls, name):
    xr = pytest.importorskip("xarray")
    ds = xr.Dataset({"v": (("y", "x"), VALUES)}, {"x": np.arange(30)})
    ds.b2nd.to_b2nd(tmp_path / name, fsync=False)
    assert synced(calls) == []
    ds.b2nd.to_b2nd(tmp_path / name, mode="w")
    # each file once, although a dataset contains frames that could be synced twice
    assert sorted(synced(calls)) == sorted({*synced(calls)})
    assert tmp_path.name in synced(calls)
    xr.testing.assert_equal(xr.open_dataset(tmp_path / name, engine="b2nd"), ds)


def test_what_lasts_until_a_commit_is_always_synced(tmp_path):
    path = tmp_path / "a.b2nd"
    create(path, shape=(40, 30), dtype="f8", chunks=(20, 30))
    with pytest.raises(ValueError, match=r"fsync=False: a part .* must last"):
        to_b2nd(VALUES[:20], path, mode="stage", region=slice(0, 20), fsync=False)


def test_stores_have_waits_of_their_own():
    url = "memory://fsync/a.b2nd"
    da.from_array(VALUES).to_b2nd(url, fsync=False)
    np.testing.assert_array_equal(b2nd_dask.open_b2nd(url)[...], VALUES)
