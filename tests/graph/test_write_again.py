"""Tasks that run again, or twice at once, as dask runs them when workers are lost."""

import os
import signal
import uuid
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import Delayed
from distributed import Client, LocalCluster

from b2nd_dask import StaleFrameError, from_b2nd, list_staging, open_b2nd, to_b2nd
from b2nd_dask.storage.read.local_reader import identity_of

VALUES = np.random.default_rng(5).normal(size=(90, 40))
KINDS = ["w-", "w", "region", "append"]


def delayed_write(target, kind, contiguous, function=None):
    """A Delayed write, and the elements of the frame after it."""
    if kind in ("region", "append"):
        to_b2nd(VALUES, target, chunks=(30, 40), contiguous=contiguous)
        place = {"region": (slice(30, 90), slice(0, 40))} if kind == "region" else {}
        place |= {"append_axis": 0} if kind == "append" else {}
        x = da.from_array(VALUES[:60] + 1, chunks=30)
        expected = np.concatenate([VALUES[: 30 if kind == "region" else 90], VALUES[:60] + 1])
        arguments = {"mode": "r+", **place}
    else:
        x, expected = da.from_array(VALUES, chunks=(30, 20)), VALUES
        arguments = {"mode": kind, "chunks": (30, 20), "contiguous": contiguous}
    if function is not None:
        x = x.map_blocks(function, dtype=float, meta=np.empty((0, 0)))
    return to_b2nd(x, target, compute=False, **arguments), expected


def commit_of(written):
    """The last task of a write as a function without arguments, all others computed."""
    graph = dict(written.__dask_graph__())
    finish, *arguments = graph[written.key]
    needed = [name for name in arguments if name in graph]
    known = dict(zip(needed, dask.get(graph, needed), strict=True))
    return lambda: finish(*(known[a] if a in needed else a for a in arguments))


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_runs_again_finds_its_own_frame(target, kind, contiguous):
    written, expected = delayed_write(target, kind, contiguous)
    commit = commit_of(written)
    assert commit() == str(target)
    before = identity_of(target.stat())
    assert commit() == str(target)
    assert identity_of(target.stat()) == before
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_graph_that_runs_again(target, kind, contiguous):
    written, expected = delayed_write(target, kind, contiguous)
    assert dask.compute(written) == dask.compute(written) == (str(target),)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_that_runs_again_after_the_end_leaves_nothing(target, kind, contiguous):
    """The task of a lost worker runs after the commit has started on another one."""
    written, expected = delayed_write(target, kind, contiguous)
    graph = dict(written.__dask_graph__())
    (opening,) = [key for key in graph if str(key).startswith("open(")]
    written.compute()
    dask.get(graph, opening)
    assert list(target.parent.iterdir()) == [target]
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)


@pytest.mark.parametrize(
    "second", [np.ones((4, 4)), np.arange(16.0).reshape(4, 4), np.full((4, 4), np.nan)]
)
def test_what_is_computed_twice_is_written_twice(target, second):
    """A source whose change dask cannot detect: the second read counts."""
    source = np.zeros((4, 4))
    x = da.from_delayed(dask.delayed(source.copy, pure=False)(), (4, 4), float)
    written = to_b2nd(x, target, mode="w", compute=False)
    written.compute()
    source[...] = second
    written.compute()
    np.testing.assert_array_equal(blosc2.open(str(target))[...], second)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("values", [np.zeros((4, 4)), np.empty((0, 4))])
def test_frames_without_stored_chunks_are_recognised_too(target, values, stats):
    commit = commit_of(to_b2nd(values, target, stats=stats, compute=False))
    assert commit() == commit() == str(target)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
def test_the_frame_of_another_write_is_not_taken_for_the_own(target, contiguous):
    written, _ = delayed_write(target, "w-", contiguous)
    commit = commit_of(written)
    to_b2nd(VALUES * 2, target, contiguous=contiguous)
    with pytest.raises(FileExistsError):
        commit()
    update = commit_of(to_b2nd(VALUES, target, mode="r+", append_axis=0, compute=False))
    assert update() == str(target)
    blosc2.open(str(target), mode="a")[3, 3] = -1.0
    with pytest.raises((StaleFrameError, FileNotFoundError)):
        update()
    assert open_b2nd(target)[3, 3] == -1.0


@pytest.mark.parametrize("contiguous", [True, False])
def test_object_stores(contiguous):
    url = f"memory://{uuid.uuid4().hex}.b2nd"
    commit = commit_of(to_b2nd(VALUES, url, chunks=30, contiguous=contiguous, compute=False))
    assert commit() == commit() == url
    np.testing.assert_array_equal(from_b2nd(url).compute(), VALUES)
    assert list_staging(url) == []


def test_s3(s3_server):
    url = f"{s3_server.url}/{uuid.uuid4().hex}.b2nd"
    options = s3_server.storage_options
    commit = commit_of(to_b2nd(VALUES, url, compute=False, storage_options=options))
    assert commit() == commit() == url
    np.testing.assert_array_equal(from_b2nd(url, storage_options=options).compute(), VALUES)


SOME = [("w-", False), ("region", True)]
REST = [
    pytest.param(kind, contiguous, marks=pytest.mark.slow)
    for kind in KINDS
    for contiguous in (True, False)
    if (kind, contiguous) not in SOME
]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_commits_in_two_processes_at_once(target, kind, contiguous, cluster):
    """Both processes have staged parts, which the commit joins."""
    written, expected = delayed_write(target, kind, contiguous)
    graph = dict(written.__dask_graph__())
    finish, *names = graph[written.key]
    needed = [name for name in names if name in graph]
    made = cluster.gather(cluster.compute([Delayed(name, graph) for name in needed]))
    known = dict(zip(needed, made, strict=True))
    arguments = [known[name] if name in needed else name for name in names]
    cluster.wait_for_workers(2)
    commits = [
        cluster.submit(finish, *arguments, pure=False, workers=[worker])
        for worker in cluster.nthreads()
    ]
    assert cluster.gather(commits) == [str(target)] * 2
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list(target.parent.iterdir()) == [target]


class DiesOnce:
    """A task that kills its worker at the end of its first run."""

    def __init__(self, call, flag):
        self.call, self.flag = call, flag

    def __call__(self, *arguments):
        done = self.call(*arguments)
        if not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done


@pytest.mark.parametrize(("kind", "contiguous"), [*SOME, *REST])
def test_a_worker_that_dies_after_it_published(target, kind, contiguous, cluster):
    written, expected = delayed_write(target, kind, contiguous, lambda block: block + 0)
    graph = dict(written.__dask_graph__())
    finish, *arguments = graph[written.key]
    flag = target.with_name("died")
    graph[written.key] = (DiesOnce(finish, flag), *arguments)
    assert cluster.compute(Delayed(written.key, graph)).result(timeout=600) == str(target)
    assert flag.exists()
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert sorted(target.parent.iterdir()) == [flag, target]


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("contiguous", [True, False])
def test_blocks_that_were_staged_twice(target, contiguous):
    """The same task runs in two processes, one of which seemed dead."""
    written, expected = delayed_write(target, "w-", contiguous)
    graph = dict(written.__dask_graph__())
    with dask.config.set(scheduler="processes", num_workers=2):
        for _ in range(2):
            dask.compute(*(Delayed(key, graph) for key in graph if "write(" in str(key)))
    assert commit_of(written)() == str(target)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list(target.parent.iterdir()) == [target]
