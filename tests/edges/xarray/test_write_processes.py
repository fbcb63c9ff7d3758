"""Writes of datasets in processes that are killed, beside each other, and on a cluster."""

import errno
import fcntl
import json
import os
import shutil
import stat
import threading
import time

import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster

import b2nd_dask
from b2nd_dask.edges.datasets import staged
from b2nd_dask.edges.xarray import adapter, append
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.write import local_update
from tests.edges.xarray.labelled import weather
from tests.forked import answer, started

W = weather().drop_encoding()
FIRST, REST = W.isel(time=slice(0, 25)), W.isel(time=slice(25, 60))


def _write_and_stay(path, options, connection):
    """Write a dataset, whose last blocks never come."""

    global _connection
    _connection = connection
    ds = REST.chunk(time=9)
    ds = ds.assign(t=ds.t.copy(data=ds.t.data.map_blocks(_stay_in_the_last, dtype="f4")))
    ds.b2nd.to_b2nd(path, **options)


def _stay_in_the_last(block, block_info=None):
    if block_info[0]["chunk-location"][0] == 3:
        _connection.send("writing")
        time.sleep(600)
    return block


@pytest.mark.parametrize("name", ["w.b2d", "w.b2z"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_killed_write_leaves_what_was_there(tmp_path, name, replaced, caplog):
    path = tmp_path / name
    if replaced:
        FIRST.b2nd.to_b2nd(path)
    with started(_write_and_stay, str(path), {"mode": "w"}) as (process, connection):
        assert answer(connection) == "writing"
        process.kill()
        process.join()
    if replaced:
        with xr.open_dataset(path, engine="b2nd") as found:
            xr.testing.assert_identical(found.load(), FIRST)
    else:
        assert not path.exists()
    (left,) = b2nd_dask.list_staging(path)
    xr.testing.assert_identical(REST.b2nd.to_b2nd(path, mode="w").compute(), REST)
    assert left.key in caplog.text
    b2nd_dask.remove_staging(path)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_appends_take_turns_and_a_killed_one_did_not_happen(tmp_path):
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    append = {"mode": "a", "append_dim": "time"}
    with started(_write_and_stay, str(path), append) as (process, connection):
        assert answer(connection) == "writing"
        with pytest.raises(BlockingIOError, match="another process changes this dataset"):
            REST.b2nd.to_b2nd(path, **append)
        with pytest.raises(BlockingIOError, match="another process changes this dataset"):
            FIRST[["t"]].b2nd.to_b2nd(path, mode="r+", region="auto")
        process.kill()
        process.join()
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), FIRST)
    xr.testing.assert_identical(REST.b2nd.to_b2nd(path, **append).compute(), W)


@pytest.mark.parametrize("kind", ["dataset", "convert"])
def test_what_is_appended_to_is_not_replaced(tmp_path, kind):
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    np.save(tmp_path / "x.npy", np.arange(5))

    def replace():
        if kind == "dataset":
            W.b2nd.to_b2nd(path, mode="w")
        else:
            b2nd_dask.convert(tmp_path / "x.npy", path, overwrite=True)

    append = {"mode": "a", "append_dim": "time"}
    with started(_write_and_stay, str(path), append) as (process, connection):
        assert answer(connection) == "writing"
        with pytest.raises(BlockingIOError, match="another process changes this dataset"):
            replace()
        process.kill()
        process.join()
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), FIRST)
    replace()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["w.b2d", "x.npy"]


def test_a_tree_is_not_replaced_while_a_group_in_it_changes(tmp_path):
    path = tmp_path / "w.b2d"
    tree = xr.DataTree.from_dict({"/a/b": FIRST, "/a/c": FIRST})
    tree.b2nd.to_b2nd(path)
    append = {"mode": "a", "append_dim": "time"}
    with started(_write_and_stay, str(path / "a" / "b"), append) as (process, connection):
        assert answer(connection) == "writing"
        with pytest.raises(BlockingIOError, match=r"another process changes this dataset.*w\.b2d"):
            tree.b2nd.to_b2nd(path, mode="w")
        # another group may change
        REST.b2nd.to_b2nd(path / "a" / "c", **append)
        process.kill()
        process.join()
    found = xr.open_datatree(path, engine="b2nd").load()
    xr.testing.assert_identical(found["a/b"].to_dataset(), FIRST)
    xr.testing.assert_identical(found["a/c"].to_dataset(), W)


def test_an_append_while_a_dataset_is_replaced_goes_to_neither(tmp_path, monkeypatch):
    """Where the directory is exchanged while it publishes, an append finds the lock taken."""
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    publish, seen = staged.publish_path, []

    def publish_late(*args, **options):
        with pytest.raises(BlockingIOError, match="another process changes this dataset"):
            REST.b2nd.to_b2nd(path, mode="a", append_dim="time")
        seen.append("refused")
        publish(*args, **options)

    monkeypatch.setattr(staged, "publish_path", publish_late)
    (FIRST + 1).b2nd.to_b2nd(path, mode="w")
    assert seen == ["refused"]
    xr.testing.assert_equal(xr.open_dataset(path, engine="b2nd").load(), FIRST + 1)


def test_what_was_computed_waits_for_its_turn(tmp_path, monkeypatch):
    path, sync, held = tmp_path / "w.b2d", staged.sync, threading.Event()
    FIRST.b2nd.to_b2nd(path)

    def change():
        with staged.changing(path):
            held.set()
            time.sleep(0.5)

    def sync_while_another_changes_it(ready):
        sync(ready)
        if not held.is_set():
            other.start()
            assert held.wait(60)

    other = threading.Thread(target=change)
    monkeypatch.setattr(staged, "sync", sync_while_another_changes_it)
    xr.testing.assert_identical(REST.b2nd.to_b2nd(path, mode="w").compute(), REST)
    other.join()


def test_the_lock_is_that_of_the_directory_that_has_the_name(tmp_path, monkeypatch):
    """A directory that was replaced between its opening and its lock is let go."""
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    flock, calls = fcntl.flock, []

    def flock_late(fd, how):
        state = os.fstat(fd)
        # and not one of the frames
        if stat.S_ISDIR(state.st_mode):
            if not calls:
                path.rename(tmp_path / "old")
                shutil.copytree(tmp_path / "old", path)
            calls.append(state.st_ino)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    REST.b2nd.to_b2nd(path, mode="a", append_dim="time")
    assert len(calls) == 2
    assert calls[1] == path.stat().st_ino
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), W)
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "old", engine="b2nd").load(), FIRST)


CHANGES = {
    "append": (REST, {"mode": "a", "append_dim": "time"}),
    "region": (FIRST[["t"]], {"mode": "r+", "region": "auto"}),
    "variables": (FIRST[["t"]].rename(t="new"), {"mode": "a"}),
}


@pytest.mark.parametrize(("given", "how"), CHANGES.values(), ids=CHANGES)
def test_a_change_on_a_file_system_without_locks(tmp_path, monkeypatch, given, how):
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    with monkeypatch.context() as patch:
        patch.setattr(local_update, "lock", lambda *_, **__: None)
        with pytest.raises(OSError, match=r"has no locks.*w\.b2d") as raised:
            given.b2nd.to_b2nd(path, **how)
    assert raised.value.errno == errno.ENOLCK
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), FIRST)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into any directory")
@pytest.mark.parametrize(("given", "how"), CHANGES.values(), ids=CHANGES)
def test_a_change_in_a_directory_that_is_read_only(tmp_path, given, how):
    path = tmp_path / "w.b2d"
    FIRST.b2nd.to_b2nd(path)
    path.chmod(0o500)
    with pytest.raises(PermissionError, match=r"w\.b2d/\w+\.b2nd'"):
        given.b2nd.to_b2nd(path, **how)
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), FIRST)


@pytest.mark.parametrize("when", ["changing", "growing", "write_together"])
def test_a_directory_that_vanishes_while_it_grows(tmp_path, monkeypatch, when):
    """Errors name the dataset, not a hidden file in it; nothing takes its name."""
    path, own = tmp_path / "w.b2d", getattr(append, when)
    FIRST.b2nd.to_b2nd(path)

    def vanish(*args):
        found = None if when == "changing" else own(*args)
        shutil.rmtree(path)
        return own(*args) if when == "changing" else found

    monkeypatch.setattr(append, when, vanish)
    with pytest.raises(FileNotFoundError, match=r"w\.b2d(/\w+\.(b2nd|json))?'"):
        REST.b2nd.to_b2nd(path, mode="a", append_dim="time")
    assert not list(tmp_path.iterdir())


def test_an_append_to_an_array_that_another_one_overtakes(tmp_path, monkeypatch):
    path, array = tmp_path / "t.b2nd", W.t
    array[:25].b2nd.to_b2nd(path)
    compare = adapter.growing

    def overtaken(*args):
        monkeypatch.undo()
        array[25:40].b2nd.to_b2nd(path, mode="a", append_dim="time")
        compare(*args)

    monkeypatch.setattr(adapter, "growing", overtaken)
    with pytest.raises(StaleFrameError, match="another process appended"):
        array[40:].b2nd.to_b2nd(path, mode="a", append_dim="time")
    found = array[40:].b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), array)


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as workers,
        Client(workers) as client,
    ):
        yield client


@pytest.mark.slow
def test_on_a_cluster(cluster, tmp_path):
    path = tmp_path / "w.b2d"
    FIRST.chunk(time=10).b2nd.to_b2nd(path)
    found = REST.chunk(time=10).b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), W)
    monthly = found.groupby("time.month").mean()
    monthly.chunk().b2nd.to_b2nd(tmp_path / "monthly.b2z")
    with xr.open_dataset(tmp_path / "monthly.b2z", engine="b2nd") as means:
        xr.testing.assert_allclose(means.load(), W.groupby("time.month").mean())
    np.testing.assert_array_equal(means.month, [1, 2, 3])


def converted(path):
    b2nd_dask.convert(path, path.with_name("converted.b2d"), overwrite=True)
    return xr.open_dataset(path.with_name("converted.b2d"), engine="b2nd")


@pytest.mark.parametrize("name", ["w.b2d", "w.b2z"])
@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize(
    "read",
    [
        lambda path: xr.open_dataset(path, engine="b2nd"),
        lambda path: xr.open_dataset([path], engine="b2nd"),
        converted,
    ],
    ids=["path", "list", "converted"],
)
def test_a_dataset_that_is_replaced_while_it_is_opened(tmp_path, monkeypatch, name, times, read):
    path, parse = tmp_path / name, json.loads

    def made(number):
        return xr.Dataset({"t": ("x", np.full(4, number))}, attrs={"number": number})

    made(0).b2nd.to_b2nd(path)
    count = 0

    def parse_and_replace(raw):
        """The manifest that was read is that of the version before."""
        nonlocal count
        found = parse(raw)
        if b'"number"' in raw and count < times:
            count += 1
            with monkeypatch.context() as patch:
                patch.setattr(json, "loads", parse)
                made(count).b2nd.to_b2nd(path, mode="w")
        return found

    monkeypatch.setattr(json, "loads", parse_and_replace)
    if times == 1:
        found = read(path).load()
        xr.testing.assert_identical(found, made(1))
    else:
        with pytest.raises(BlockingIOError, match=rf"again and again.*{name}"):
            read(path)


@pytest.mark.parametrize("when", ["before it looks", "while it computes"])
def test_an_append_that_finds_a_new_frame_of_another_process_advises_to_append(
    tmp_path, monkeypatch, when
):
    path = tmp_path / "t.b2nd"
    first, rest = (each.t.reset_coords(drop=True) for each in (FIRST, REST))

    def made_by_another(block=None):
        if not path.exists():
            first.b2nd.to_b2nd(path)
        return block

    if when == "before it looks":
        made_by_another()
        answers, own = [False], adapter._exists
        monkeypatch.setattr(adapter, "_exists", lambda *a: answers.pop() if answers else own(*a))
        lazy = rest
    else:
        lazy = rest.copy(data=rest.chunk().data.map_blocks(made_by_another, meta=rest.values[:0]))
    with pytest.raises(StaleFrameError, match="another process made this frame meanwhile"):
        lazy.b2nd.to_b2nd(path, mode="a", append_dim="time")
    written = rest.b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_equal(written.compute(), xr.concat([first, rest], "time"))
