"""A write removes its staging area; if it cannot, the frame is written nevertheless."""

import errno
import itertools
import logging
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback

from b2nd_dask import compact, list_staging, open_b2nd, remove_staging, seal, to_b2nd
from b2nd_dask.storage import Location, staging_for
from b2nd_dask.storage.write import local_names
from b2nd_dask.storage.write.local_staging import ContiguousStaging
from b2nd_dask.storage.write.object_staging import ObjectStaging
from b2nd_dask.storage.write.object_store import StagingArea

VALUES = np.random.default_rng(5).normal(size=1000)


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def new(path, contiguous):
    to_b2nd(VALUES, path, chunks=100, contiguous=contiguous, mode="w")


def changed(path, contiguous):
    to_b2nd(VALUES, path, chunks=100, contiguous=contiguous)
    to_b2nd(VALUES[:300], path, mode="r+", region=(slice(0, 300),))


def compacted(path, contiguous):
    changed(path, contiguous)
    compact(path)


def sealed(path, contiguous):
    blosc2.asarray(VALUES, urlpath=str(path), chunks=(100,), blocks=(50,), contiguous=contiguous)
    seal(path)


WAYS = [new, changed, compacted, sealed]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_is_removed_is_open(target, monkeypatch, way, contiguous):
    """NFS clients keep such a file under a hidden name, so that its directory cannot be removed."""
    original, numbers = os.unlink, itertools.count()

    def unlink(path, *, dir_fd=None):
        state = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        if any(os.path.samestat(state, one) for one in states_of_open_files()):
            hidden = f".nfs{next(numbers):08x}"
            return os.rename(path, hidden, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        return original(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    way(target, contiguous)
    assert list(target.parent.iterdir()) == [target]
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


def states_of_open_files():
    for link in Path("/proc/self/fd").iterdir():
        # the directory itself was open while it was listed
        with suppress(FileNotFoundError):
            yield link.stat()


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_frame_is_written_though_its_staging_cannot_be_removed(
    target, monkeypatch, caplog, way, contiguous
):
    original = os.rmdir

    def rmdir(path, *, dir_fd=None):
        if str(path).endswith(".removed"):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        return original(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "b2nd_dask"):
        patch.setattr(os, "rmdir", rmdir)
        # it tries for seconds
        patch.setattr(local_names, "_LONGEST_PAUSE", 0.001)
        way(target, contiguous)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    left = list_staging(target)
    assert left
    for info in left:
        assert info.key in caplog.text
    assert str(target) in caplog.text
    remove_staging(target)
    assert list(target.parent.iterdir()) == [target]


class BackendError(Exception):
    """An error as clients of stores raise it: no subclass of OSError."""


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_store_that_is_lost_after_the_frame_is_written(monkeypatch, caplog, contiguous):
    url = f"memory://{uuid.uuid4().hex}.b2nd"

    def close(self):
        raise BackendError("the connection is lost")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "b2nd_dask"):
        patch.setattr(StagingArea, "close", close)
        back = to_b2nd(VALUES, url, chunks=100, contiguous=contiguous)
    np.testing.assert_array_equal(back.compute(), VALUES)
    (info,) = list_staging(url)
    assert f"{url}: the staged files of the key {info.key}" in caplog.text
    remove_staging(url)
    assert list_staging(url) == []
    np.testing.assert_array_equal(open_b2nd(url)[...], VALUES)


def test_a_staging_area_has_lost_its_name_before_it_is_emptied(target, monkeypatch):
    staging = staging_for(Location.of(target), sparse=True, replace=False, header_len=100)
    staging.prepare()
    staging.append([b"a", b"b"])
    (info,) = list_staging(target)
    emptied = []
    original = local_names.remove_path

    def remove_path(path):
        assert not Path(info.path).exists() or not path.exists()
        emptied.append(path)
        original(path)

    monkeypatch.setattr(local_names, "remove_path", remove_path)
    assert remove_staging(target) == [info]
    assert emptied
    assert list(target.parent.iterdir()) == []


class TestWithoutExchange:
    """NFS and others cannot exchange two directories: the old frame is set aside."""

    @pytest.fixture(autouse=True)
    def _no_renameat2(self, monkeypatch):
        monkeypatch.setattr(local_names, "renameat2", lambda *_: False)

    def replace(self, target):
        to_b2nd(VALUES + 1, target, chunks=100, contiguous=False, mode="w")

    def test_a_frame_is_replaced(self, target):
        new(target, False)
        self.replace(target)
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES + 1)
        assert list(target.parent.iterdir()) == [target]

    def test_a_removal_leaves_an_old_frame_that_was_just_set_aside(self, target, monkeypatch):
        """The write that has set it aside fails, and gives it its name back."""
        new(target, False)
        staging_for(Location.of(target), sparse=True, replace=True, header_len=100).prepare()
        (info,) = list_staging(target)
        aside, original = Path(info.path).with_suffix(".old"), os.path.lexists

        def set_aside(path):
            found = original(path)
            if not original(aside):
                target.rename(aside)
            return found

        monkeypatch.setattr(os.path, "lexists", set_aside)
        remove_staging(target)
        monkeypatch.undo()
        np.testing.assert_array_equal(open_b2nd(aside)[...], VALUES)
        assert list(target.parent.iterdir()) == [aside]

    @pytest.mark.parametrize("happened", [True, False])
    @pytest.mark.parametrize("error", [OSError(errno.EIO, "injected"), KeyboardInterrupt()])
    def test_the_second_rename_fails(self, target, monkeypatch, happened, error):
        new(target, False)
        original = os.rename

        def fail(source, to, **keywords):
            if Path(source).name != "frame":
                return original(source, to, **keywords)
            if happened:
                original(source, to, **keywords)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail)
            with pytest.raises(type(error)):
                self.replace(target)
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES + happened)
        assert list(target.parent.iterdir()) == [target]

    @pytest.mark.parametrize("kind", ["frame", "dataset"])
    def test_no_rename_gives_the_name_back(self, target, monkeypatch, kind):
        """The frame that was set aside is the only copy."""

        def write(values):
            if kind == "frame":
                to_b2nd(values, path, contiguous=False, mode="w")
            else:
                to_b2nd(xr.Dataset({"a": ("x", values)}), path, mode="w")

        path = target if kind == "frame" else target.with_name("d.b2d")
        write(VALUES)
        original = os.rename

        def fail(source, to, **keywords):
            if Path(to) == path:
                raise OSError(errno.EIO, "injected", str(to))
            return original(source, to, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail)
            with pytest.raises(OSError, match="injected"):
                write(VALUES + 1)
        remove_staging(path)
        found = open_b2nd(path if kind == "frame" else path / "a.b2nd")
        np.testing.assert_array_equal(found[...], VALUES)
        assert list(target.parent.iterdir()) == [path]

    def test_the_old_frame_gets_its_name_back(self, target):
        new(target, False)
        aside = target.with_name(f".{target.name}.{'0' * 16}.old")
        target.rename(aside)
        (info,) = list_staging(target)
        assert info.path == str(aside)
        remove_staging(target)
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
        assert list(target.parent.iterdir()) == [target]


def test_a_replaced_directory_keeps_its_mode(target):
    new(target, False)
    target.chmod(0o2775)
    new(target, False)
    assert target.stat().st_mode & 0o7777 == 0o2775


@pytest.mark.parametrize("how", ["region", "w", "compact"])
def test_a_changed_frame_keeps_its_mode(target, contiguous, how):
    """The index of a sparse frame, which each change opens for writing, keeps its mode, too."""
    new(target, contiguous)
    file = target if contiguous else target / "chunks.b2frame"
    file.chmod(0o660)
    to_b2nd(0, target, mode="r+", region=slice(0, 5))
    if how == "w":
        new(target, contiguous)
    elif how == "compact":
        assert compact(target)
    assert file.stat().st_mode & 0o7777 == 0o660


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_task_that_starts_the_write_after_it_failed(target, monkeypatch, store):
    """Other threads compute rechunked blocks while the write starts."""
    url = target if store == "local" else f"memory://{uuid.uuid4().hex}.b2nd"
    kind = ContiguousStaging if store == "local" else ObjectStaging
    starting, failed = threading.Event(), threading.Event()
    discard = kind.discard

    def late(staging):
        starting.set()
        assert failed.wait(600)
        # as for a task in another process than the client
        return False

    def then_start(staging):
        discard(staging)
        failed.set()

    def fail(block):
        assert starting.wait(600)
        raise RuntimeError("no more")

    monkeypatch.setattr(kind, "is_prepared", property(late))
    monkeypatch.setattr(kind, "discard", then_start)
    x = da.zeros(8, chunks=4).map_blocks(fail, meta=np.empty(0)).rechunk(8)
    with (
        ThreadPoolExecutor(4) as pool,
        dask.config.set(scheduler="threads", pool=pool),
        pytest.raises(RuntimeError, match="no more"),
    ):
        to_b2nd(x, url)
    # the pool waits for all tasks
    assert failed.is_set()
    assert list_staging(url) == []
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("store", ["local", "memory"])
def test_nothing_is_written_for_a_write_that_was_given_up(target, store):
    """Given up before the intermediate frame starts in the removed staging area."""
    url = target if store == "local" else f"memory://{uuid.uuid4().hex}.b2nd"
    starts, tasks = [], []

    def give_up(key, *_):
        tasks.append(key)
        if "open" in str(key):
            starts.append(key)
            if len(starts) == 2:
                assert len(remove_staging(url)) == 1

    x = da.ones((20, 10, 10), chunks=(1, 10, 10)).map_blocks(np.negative)
    write = to_b2nd(x.reshape(20, 100), url, max_mem="400MB", compute=False)
    with Callback(pretask=give_up), pytest.raises(FileNotFoundError, match=r"\.b2nd"):
        write.compute(scheduler="sync")
    assert tasks[-1] == starts[-1]
    assert list_staging(url) == []
