"""Run functions in processes of their own that need not import everything first."""

from __future__ import annotations

import multiprocessing
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_context = multiprocessing.get_context("forkserver")


def preload() -> None:
    """Let the server process, which has no threads and forks, import what takes seconds."""
    _context.set_forkserver_preload(
        ["b2nd_dask", "distributed", "aiobotocore.session", "aiohttp", "s3fs"]
    )


def _run(results: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        results.send((function(*arguments), None))
    except BaseException:  # noqa: BLE001 - whatever it is, the test reports it
        results.send((None, traceback.format_exc()))


def run_forked(function: Callable[..., Any], *arguments: Any, seconds: float = 600) -> Any:
    """Give what a function of a module gives; an error in it and a crash fail the test."""
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
