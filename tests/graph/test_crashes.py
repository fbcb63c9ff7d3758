"""After a crash or an error the frame is the old one or the new one, whole, and a re-run finishes.

Each scenario is killed at every call of the system that changes the disk, one after the other: at
each of some 500 moments, incl. all those of the commit, and cut writes. Injected errors likewise.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.utils import json_load_robust

import b2nd_dask
from b2nd_dask import list_staging, open_b2nd, remove_staging, to_b2nd
from tests.forked import run_forked
from tests.graph import crashes
from tests.graph.gate import pass_gate

ROOT = Path(b2nd_dask.__file__).parents[1]
KINDS = ["new", "overwrite", "region", "append", "compact"]
ALL = [*KINDS, "resume"]
RESUMED = ["resume", "resumed append", "resumed region", "resumed append, unsealed"]
#: If both layouts of a frame have the same steps, one is marked slow and the other one long.
SLOW_RESUMED = [
    ("resumed append", True, "kill"),
    ("resume", False, "kill"),
    ("resume", True, "EIO"),
    ("resumed append", False, "EIO"),
    ("resumed region", True, "EIO"),
    ("resumed append, unsealed", True, "kill"),
]
#: One of each kind; others are slow or long.
QUICK_ERRORS = [("append", True, "ENOSPC")]
LONG_RENAMES = [("overwrite", "late"), ("compact", "interrupt"), ("compact", "EIO")]


def crash(folder, kind, contiguous, fault, *, exchange=True):
    return run_forked(crashes.crash, kind, contiguous, fault, folder, exchange, seconds=880)


#: Each error is injected into a third of the writes, as file or directory; others are long.
ERRORS = {True: ("ENOSPC", "fsync", "rename"), False: ("EIO", "short", "late")}


def cases(quick, *axes, slow=lambda *case: True):
    """The product of lists; cases outside `quick` and `slow` are marked long."""
    return [pytest.param(*c, marks=_mark(c, quick, slow)) for c in itertools.product(*axes)]


def _mark(case, quick, slow):
    if case in quick:
        return ()
    return pytest.mark.slow if slow(*case) else pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "contiguous"),
    cases([], [*ALL, "unsynced overwrite", "unsynced append"], [True, False]),
)
def test_killed_at_each_call(tmp_path, kind, contiguous):
    outcomes = crash(tmp_path, kind, contiguous, "kill")
    # old and new frame of `compact` have equal elements
    expected = {"killed, old"} if kind == "compact" else {"killed, old", "killed, new"}
    # the outcomes of a resumed write include its second call
    assert {ended for ended in outcomes if not ended.startswith("resumed")} == expected
    assert sum(outcomes.values()) > 25


@pytest.mark.parametrize(
    ("kind", "contiguous", "fault"),
    cases(
        [],
        RESUMED,
        [True, False],
        ["kill", "EIO"],
        slow=lambda *case: case in SLOW_RESUMED,
    ),
)
def test_what_was_staged_is_reused_and_each_element_written_once(tmp_path, kind, contiguous, fault):
    outcomes = crash(tmp_path, kind, contiguous, fault)
    # within the commit, before and after the new state is valid
    assert outcomes["resumed whole, old"] > 5
    assert outcomes["resumed whole, new"] > 0


@pytest.mark.parametrize(
    ("kind", "contiguous", "fault"),
    cases(
        QUICK_ERRORS,
        ALL,
        [True, False],
        sorted({*ERRORS[True], *ERRORS[False]}),
        slow=lambda kind, contiguous, fault: (
            fault in ERRORS[contiguous]
            and (ALL.index(kind) + ERRORS[contiguous].index(fault)) % 3 == 1
        ),
    ),
)
def test_errors_at_each_call(tmp_path, kind, contiguous, fault):
    outcomes = crash(tmp_path, kind, contiguous, fault)
    assert not any(ended.startswith(("other", "killed")) for ended in outcomes)
    # a change of a contiguous frame renames only the staging area that it removes
    harmless = fault == "short" or (
        fault == "rename" and contiguous and kind in ("append", "region")
    )
    assert any(ended.startswith("error") for ended in outcomes) != harmless


@pytest.mark.parametrize(
    ("kind", "contiguous"),
    cases(
        [("append", True)],
        ALL,
        [True, False],
        slow=lambda kind, contiguous: ALL.index(kind) % 2 == contiguous,
    ),
)
def test_interrupts_right_behind_each_call(tmp_path, kind, contiguous):
    outcomes = crash(tmp_path, kind, contiguous, "interrupt")
    assert not any(ended.startswith(("other", "killed")) for ended in outcomes)


@pytest.mark.parametrize(
    ("kind", "fault"),
    cases(
        [],
        ["overwrite", "compact"],
        ["kill", "rename", "late", "interrupt", "EIO"],
        slow=lambda *case: case not in LONG_RENAMES,
    ),
)
def test_a_file_system_that_cannot_exchange_directories(tmp_path, kind, fault):
    outcomes = crash(tmp_path, kind, False, fault, exchange=False)
    assert not any(ended.startswith("other") for ended in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("kind", ["rechunk", "d.b2d", "d.b2z"])
def test_errors_in_what_a_target_is_made_of_name_the_target(tmp_path, kind, fault):
    rechunked = kind == "rechunk"
    scenario = crashes.Rechunk(tmp_path) if rechunked else crashes.Labelled(tmp_path / kind)
    outcomes = run_forked(crashes.errors, scenario, fault, 7 if rechunked else 1, seconds=300)
    # the clean-up may fail without an error of the write
    assert outcomes.keys() <= {"error", "done", "over"}
    assert outcomes["error"] > 3


VALUES = np.random.default_rng(3).normal(size=(120, 50))


def slow_array(gate=None):
    """An array of which only some blocks can be computed until a file exists."""

    def work(block):
        time.sleep(0.02)
        if gate is not None:
            pass_gate(gate, 5)
        return block + 1

    x = da.from_array(VALUES, chunks=(10, 50))
    return x.map_blocks(work, dtype=float, meta=np.empty((0, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("contiguous", [True, False])
def test_workers_that_are_killed(tmp_path, contiguous):
    """Workers die one by one, at seeded moments; dask repeats their tasks on the others."""
    target = tmp_path / "target.b2nd"
    moments = np.random.default_rng(0).uniform(0, 0.3, 3)
    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = client.run(os.getpid).values()
        for victim, moment in zip(workers, moments, strict=False):
            written = to_b2nd(slow_array(), target, mode="w", contiguous=contiguous, compute=False)
            future = client.compute(written)
            time.sleep(moment)
            os.kill(victim, signal.SIGKILL)
            assert future.result(timeout=300) == str(target)
            np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES + 1)
            # dask may repeat a task while the commit ends: docs/durability.md
            remove_staging(target)
            assert list(tmp_path.iterdir()) == [target]


CLIENT = """
import sys
from distributed import Client
from b2nd_dask import to_b2nd
from tests.graph.test_crashes import slow_array
with Client(sys.argv[1]):
    x = slow_array(sys.argv[3])
    to_b2nd(x, sys.argv[2], chunks=(10, 50), mode="w", resume=True)
"""


@pytest.mark.slow
def test_a_client_that_is_killed(tmp_path):
    """Its tasks stop, the old frame stays, and a second run resumes."""
    target, gate = tmp_path / "frames" / "target.b2nd", tmp_path / "gate"
    target.parent.mkdir()
    to_b2nd(VALUES, target, chunks=(10, 50))
    arguments = [sys.executable, "-c", CLIENT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        arguments += [cluster.scheduler_address, str(target), str(gate)]
        with until_killed(arguments, env=environment, cwd=ROOT):
            wait_until(lambda: staged_nbytes(target))
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
        gate.touch()
        subprocess.run(arguments, env=environment, cwd=ROOT, check=True, timeout=600)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES + 1)
    remove_staging(target)
    assert list(target.parent.iterdir()) == [target]


@contextmanager
def until_killed(arguments, **how):
    """Run a process; it is killed at the end."""
    with subprocess.Popen(arguments, **how) as process:
        try:
            yield
        finally:
            process.kill()


def staged_nbytes(target):
    return sum(info.nbytes for info in list_staging(target))


def wait_until(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def start_cluster(folder):
    """A scheduler and a worker, each in a process of its own."""
    address = folder / "scheduler.json"
    flags = ["--scheduler-file", str(address), "--no-dashboard"]
    scratch = ["--local-directory", str(folder)]
    place = ["--port", "0", "--host", "127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dask", *command],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for command in (
            ["scheduler", *flags, *place],
            ["worker", *flags, *scratch, "--nthreads", "2", "--no-nanny", "--death-timeout", "60"],
        )
    ]
    return json_load_robust(address, timeout=300)["address"], processes


@pytest.mark.slow
def test_a_scheduler_that_is_killed(tmp_path):
    """The old frame stays, and a second run on another cluster reuses staged chunks."""
    target, gate = tmp_path / "frames" / "target.b2nd", tmp_path / "gate"
    target.parent.mkdir()
    to_b2nd(VALUES, target, chunks=(10, 50))
    arguments = [sys.executable, "-c", CLIENT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = []
    try:
        address, running = start_cluster(tmp_path)
        client = [*arguments, address, str(target), str(gate)]
        with until_killed(client, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL):
            wait_until(lambda: staged_nbytes(target))
            scheduler, worker = running
            scheduler.kill()
            scheduler.wait()
            gate.touch()
            worker.wait(timeout=300)
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
        (tmp_path / "scheduler.json").unlink()
        address, running = start_cluster(tmp_path)
        subprocess.run(
            [*arguments, address, str(target), str(gate)],
            cwd=ROOT,
            env=environment,
            check=True,
            timeout=600,
        )
        np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES + 1)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    remove_staging(target)
    assert list(target.parent.iterdir()) == [target]
