"""Run functions in new processes that have imported all modules."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

_context = multiprocessing.get_context("forkserver")


def preload() -> None:
    """Let the server process, which forks and has no threads, import slow modules."""
    _context.set_forkserver_preload(
        ["b2nd_dask", "distributed", "aiobotocore.session", "aiohttp", "s3fs"]
    )


def _run(results: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        results.send((function(*arguments), None))
    except BaseException:  # noqa: BLE001 - whatever it is, the test reports it
        results.send((None, traceback.format_exc()))


def run_forked(function: Callable[..., Any], *arguments: Any, seconds: float = 600) -> Any:
    """Return the result of a function of a module; its error or a crash fails the test."""
    results, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_run, args=(sender, function, arguments))
    with results:
        process.start()
        sender.close()
        try:
            assert results.poll(seconds), f"it did not end within {seconds} seconds"
            result, error = results.recv()
        except EOFError:
            process.join()
            raise AssertionError(f"it ended with exit code {process.exitcode}") from None
        finally:
            process.kill()
            process.join()
            process.close()
    assert error is None, error[-4000:]
    return result


@contextmanager
def started(
    function: Callable[..., Any], *arguments: Any
) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """Run a function in a process until the block ends; its last argument is a connection."""
    connection, theirs = _context.Pipe()
    process = _context.Process(target=function, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield process, connection
    finally:
        process.kill()
        process.join()
        connection.close()


def answer(connection: Connection) -> Any:
    """The next message of such a function."""
    assert connection.poll(600), "it says nothing"
    return connection.recv()


class Ended(NamedTuple):
    """The end of a process, and its output."""

    stdout: str
    stderr: str
    code: int
    """Exit code, or the negative number of a signal."""


def _run_to_files(
    stdout: Path, stderr: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    for descriptor, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    function(*arguments)


def run_to_end(function: Callable[..., Any], *arguments: Any, seconds: float = 600) -> Ended:
    """Run a function of a module that may crash its process; keep its output."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        arguments = (stdout, stderr, function, arguments)
        process = _context.Process(target=_run_to_files, args=arguments)
        process.start()
        process.join(seconds)
        code = process.exitcode
        process.kill()
        process.join()
        process.close()
        assert code is not None, f"it did not end within {seconds} seconds"
        return Ended(
            *(path.read_text() if path.exists() else "" for path in (stdout, stderr)), code
        )
