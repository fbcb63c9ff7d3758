"""Frames that another writer replaces during a change: its frame stays untouched."""

import itertools
import os
import pickle
import shutil
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import (
    B2ndError,
    StaleFrameError,
    compact,
    from_b2nd,
    list_staging,
    open_b2nd,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.frame.access import frame_at, locate
from b2nd_dask.frame.read import scan
from b2nd_dask.storage.write import local_names, local_staging, local_update
from tests.forked import answer, started

OLD = np.random.default_rng(5).integers(0, 2**30, 4000)
NEW = np.random.default_rng(6).integers(0, 2**30, 5000)


def before_publish(monkeypatch, form, act):
    """Call a function when a commit has checked its target and is about to publish."""
    original = form.publish

    def publish(self, *arguments):
        monkeypatch.setattr(form, "publish", original)
        act()
        return original(self, *arguments)

    monkeypatch.setattr(form, "publish", publish)


CHANGES = {
    "region": lambda path: to_b2nd(OLD[:100] + 1, path, mode="r+", region=(slice(0, 100),)),
    "append": lambda path: to_b2nd(OLD[:100] + 1, path, mode="r+", append_axis=0),
    "seal": seal,
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_that_took_the_place_is_not_changed(target, monkeypatch, change, contiguous):
    blosc2.asarray(OLD, urlpath=str(target), chunks=(100,), blocks=(50,), contiguous=contiguous)
    form = local_update.ContiguousUpdate if contiguous else local_update.SparseUpdate

    def replace():
        to_b2nd(NEW, target, chunks=100, mode="w", contiguous=contiguous)

    before_publish(monkeypatch, form, replace)
    with pytest.raises(StaleFrameError, match="changed while") as caught:
        CHANGES[change](target)
    assert str(target) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert verify(target).ok
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("moment", ["exclusive", "publish"])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_of_the_other_form_that_took_the_place(
    target, monkeypatch, change, contiguous, moment
):
    to_b2nd(OLD, target, chunks=100, contiguous=contiguous)
    if change == "seal":
        blosc2.open(str(target), mode="a")[0] = OLD[0]
    form = local_update.ContiguousUpdate if contiguous else local_update.SparseUpdate
    original = getattr(form, moment)

    def replace(self, *arguments):
        monkeypatch.setattr(form, moment, original)
        to_b2nd(NEW, target, chunks=100, mode="w", contiguous=not contiguous)
        return original(self, *arguments)

    monkeypatch.setattr(form, moment, replace)
    with pytest.raises(StaleFrameError, match="changed while") as caught:
        CHANGES[change](target)
    assert str(target) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_that_takes_the_other_form_as_it_is_opened_to_write(
    target, monkeypatch, change, contiguous
):
    to_b2nd(OLD, target, chunks=100, contiguous=contiguous)
    if change == "seal":
        blosc2.open(str(target), mode="a")[0] = OLD[0]
    original = os.open

    def replace(path, flags, *arguments, **keywords):
        if flags & os.O_RDWR and Path(path) == locked:
            monkeypatch.setattr(os, "open", original)
            to_b2nd(NEW, target, chunks=100, mode="w", contiguous=not contiguous)
        return original(path, flags, *arguments, **keywords)

    locked = target if contiguous else target / "chunks.b2frame"
    monkeypatch.setattr(os, "open", replace)
    with pytest.raises(StaleFrameError, match="changed while") as caught:
        CHANGES[change](target)
    assert os.open is original
    assert str(target) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert list(target.parent.iterdir()) == [target]


def test_compact_of_a_frame_whose_directory_is_emptied(target, monkeypatch):
    to_b2nd(OLD, target, chunks=100, contiguous=False)
    to_b2nd(OLD[:100] + 1, target, mode="r+", region=(slice(0, 100),))
    original = scan.chunk_heads

    def replace(*arguments):
        monkeypatch.setattr(scan, "chunk_heads", original)
        to_b2nd(NEW, target, chunks=100, mode="w", contiguous=False)
        return original(*arguments)

    monkeypatch.setattr(scan, "chunk_heads", replace)
    with pytest.raises(StaleFrameError):
        compact(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
def test_opening_a_frame_that_takes_the_other_form_in_this_moment(target, monkeypatch, contiguous):
    other = target.with_name("other.b2nd")
    to_b2nd(OLD, target, chunks=100, contiguous=contiguous)
    to_b2nd(NEW, other, chunks=100, contiguous=not contiguous)
    known = pickle.loads(pickle.dumps(open_b2nd(target)))
    original = os.open

    def swap(path, *arguments, **keywords):
        if os.fspath(path) == str(target) and other.exists():
            target.rename(target.with_name("gone"))
            other.rename(target)
        return original(path, *arguments, **keywords)

    # before a file is opened: earlier stats of the path are out of date
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", swap)
        np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert not other.exists()
    with pytest.raises(StaleFrameError):
        known[...]


@pytest.mark.parametrize("contiguous", [True, False])
def test_writing_over_a_target_that_takes_the_other_form_in_this_moment(
    target, monkeypatch, contiguous
):
    to_b2nd(OLD, target, chunks=100, contiguous=contiguous)
    original = local_names._replace

    def replace(ready, path):
        monkeypatch.setattr(local_names, "_replace", original)
        kept, found = Path.is_dir, []

        def is_dir(self):
            answer = kept(self)
            if self == path and not found:
                found.append(answer)
                to_b2nd(OLD, target, chunks=100, mode="w", contiguous=not contiguous)
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_dir", is_dir)
            original(ready, path)
        assert found == [not contiguous]

    monkeypatch.setattr(local_names, "_replace", replace)
    to_b2nd(NEW, target, chunks=100, mode="w", contiguous=contiguous)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
def test_compact_puts_nothing_over_it(target, monkeypatch, contiguous):
    to_b2nd(OLD, target, chunks=100, contiguous=contiguous)
    to_b2nd(OLD[:100] + 1, target, mode="r+", region=(slice(0, 100),))
    form = local_staging.ContiguousStaging if contiguous else local_staging.SparseStaging

    def replace():
        to_b2nd(NEW, target, chunks=100, mode="w", contiguous=contiguous)

    before_publish(monkeypatch, form, replace)
    with pytest.raises(StaleFrameError, match="replaced meanwhile"):
        compact(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], NEW)
    assert list(target.parent.iterdir()) == [target]


def test_a_chunk_file_of_another_program_stays(target, monkeypatch):
    to_b2nd(OLD, target, chunks=1000, contiguous=False)
    foreign = target / "00000004.chunk"
    form = local_update.SparseUpdate
    before_publish(monkeypatch, form, lambda: foreign.write_bytes(b"another program's"))
    with pytest.raises(FileExistsError):
        to_b2nd(NEW[:100], target, mode="r+", region=(slice(0, 100),))
    assert foreign.read_bytes() == b"another program's"
    np.testing.assert_array_equal(open_b2nd(target)[...], OLD)


def change(target, connection):
    """Change a frame in place repeatedly, until it must end, at least once."""
    patch = np.arange(10) + 2**60
    connection.send("begun")
    done = 0
    while not (done and connection.poll()):
        try:
            with dask.config.set(scheduler="sync"):
                to_b2nd(patch, target, mode="r+", region=(slice(0, 10),))
            done += 1
        except B2ndError:
            pass
    connection.send(done)


@pytest.mark.parametrize(
    "forms",
    [
        *(pytest.param((same, same), marks=pytest.mark.slow) for same in (True, False)),
        (True, False),
    ],
)
def test_replacing_a_frame_that_another_process_changes(target, forms):
    values = np.random.default_rng(1).integers(0, 2**59, (20, 500))
    to_b2nd(values[0], target, chunks=10, contiguous=forms[0])
    with started(change, target) as (changing, connection):
        assert answer(connection) == "begun"
        for row, contiguous in zip(values, itertools.cycle(forms)):
            new = da.from_array(row, chunks=-1)
            write = to_b2nd(new, target, chunks=10, contiguous=contiguous, mode="w", compute=False)
            write.compute()
            found = values_of(target)
            np.testing.assert_array_equal(found[10:], row[10:])
            patched = np.array_equal(found[:10], np.arange(10) + 2**60)
            assert patched or np.array_equal(found[:10], row[:10])
        connection.send("end")
        assert answer(connection) > 0
        changing.join()
    assert verify(target).ok
    assert list_staging(target) == []
    assert list(target.parent.iterdir()) == [target]


def values_of(target):
    while True:
        try:
            return open_b2nd(target)[...]
        except StaleFrameError:
            pass


def put_same_inodes_there(path):
    """Replace a sparse frame by a copy with the inodes and times of its files.

    `rm -r` and `cp -a` have this effect on ext4, which reuses inodes; links certainly have it.
    """
    copy = path.with_name("copy")
    shutil.copytree(path, copy, copy_function=os.link)
    shutil.rmtree(path)
    copy.rename(path)


def test_a_sparse_frame_that_is_copied_back_into_its_place_is_read_there(target):
    to_b2nd(OLD, target, chunks=100, contiguous=False)
    known = open_b2nd(target)
    np.testing.assert_array_equal(known[...], OLD)
    sent = pickle.dumps(from_b2nd(target))
    put_same_inodes_there(target)
    # the open directory has no files any more; that at the path has the same version
    np.testing.assert_array_equal(known[...], OLD)
    # a reference from elsewhere has only the version, which this process has open
    np.testing.assert_array_equal(pickle.loads(sent).compute(scheduler="sync"), OLD)
    put_same_inodes_there(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], OLD)
    assert verify(target).ok


def test_a_sparse_frame_that_is_copied_back_is_followed_there(target):
    to_b2nd(OLD, target, chunks=100, contiguous=False)
    frame = frame_at(locate(target, 0, None)).following()
    np.testing.assert_array_equal(frame.read((slice(None),)), OLD)
    sent = pickle.dumps(frame)
    put_same_inodes_there(target)
    np.testing.assert_array_equal(pickle.loads(sent).read((slice(None),)), OLD)
