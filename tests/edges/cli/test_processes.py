"""The command in processes of its own: pipes, interrupts, `python -m`, the command `dask`."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import b2nd_dask
from b2nd_dask.edges.cli import main, upkeep
from tests.forked import Ended, answer, run_to_end, started


def _main(*arguments: str) -> None:
    main(list(arguments), prog_name="b2nd-dask")


def _module(*arguments: str) -> None:
    sys.argv = ["b2nd_dask", *arguments]
    runpy.run_module("b2nd_dask", run_name="__main__")


def _dask(*arguments: str) -> None:
    from dask.cli import run_cli

    sys.argv = ["dask", *arguments]
    run_cli()


def _into_a_closed_pipe(*arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    sys.stdout = os.fdopen(1, "w")
    _main(*arguments)


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "a.b2nd")
    b2nd_dask.to_b2nd(np.arange(6.0), name)
    return name


def test_python_dash_m(path: str) -> None:
    ended = run_to_end(_module, "info", path)
    assert (ended.code, ended.stderr) == (0, "")
    assert "float64" in ended.stdout
    assert run_to_end(_module, "--help").stdout.startswith("Usage: python -m b2nd_dask ")


def test_a_sub_command_of_dask(path: str) -> None:
    ended = run_to_end(_dask, "b2nd", "verify", path)
    assert (ended.code, ended.stderr) == (0, "")
    assert "verified: all 1 stored chunks" in ended.stdout
    assert run_to_end(_dask, "b2nd", "info", f"{path}.gone").code == 1


def test_dask_loads_no_package_for_its_other_verbs() -> None:
    code = "import b2nd_dask_command, sys; print(sorted({'b2nd_dask', 'dask'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    (entry,) = metadata.entry_points(group="dask_cli", name="b2nd")
    assert entry.module == "b2nd_dask_command"


def test_a_reader_that_is_gone_ends_it_quietly(path: str) -> None:
    for verb in ("info", "map", "stats", "verify", "plan"):
        ended = run_to_end(_into_a_closed_pipe, verb, path)
        assert ended == Ended("", "", 141)


def _interrupted(path: str, connection: Connection) -> None:
    """Verify a frame, whose chunks never end, until it is interrupted."""
    reached = threading.Event()
    # what runs in the background of a shell inherits that interrupts are ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait(*_: object, **__: object) -> None:
        connection.send(os.getpid())
        # a signal that comes just before a wait without an end does not end that
        while not reached.wait(0.1):
            pass

    upkeep.verify_noting = wait  # type: ignore[assignment]
    try:
        _main("verify", path)
    except SystemExit as ended:
        connection.send(ended.code)


def test_an_interrupt_ends_it(path: str) -> None:
    with started(_interrupted, path) as (_, connection):
        os.kill(answer(connection), signal.SIGINT)
        assert answer(connection) == 130


WITHOUT_DASK = """
import sys, b2nd_dask_command
sys.argv = ["b2nd-dask", "info", sys.argv[1]]
try:
    b2nd_dask_command.main()
except SystemExit as ended:
    assert not ended.code
assert "dask" not in sys.modules
"""


def test_the_script_looks_at_frames_without_dask(path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_DASK, path], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "float64" in ended.stdout


WITH_DASK = """
import sys, b2nd_dask_command
sys.argv = ["b2nd-dask", "stats", sys.argv[1]]
try:
    b2nd_dask_command.main()
except SystemExit as ended:
    assert not ended.code
import b2nd_dask, dask.array
assert dask.array.from_b2nd is b2nd_dask.from_b2nd
assert vars(dask.array.Array)["__dask_optimize__"].__module__.startswith("b2nd_dask.")
"""


@pytest.mark.slow
def test_the_script_completes_the_package_for_what_computes(path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITH_DASK, path], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "mean     2.5" in ended.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info", "--help"]])
def test_what_cannot_be_printed_is_a_message(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "b2nd_dask", *arguments]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr[:6]) == (1, "Error:")
    assert "Traceback" not in ended.stderr
