"""Computations with a bar on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dask.callbacks import Callback

from b2nd_dask.edges.cli.terminal import progress


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Show how many tasks are done of what dask computes in threads while the block runs."""
    with progress(what) as show:

        def after_task(_key: Any, _result: Any, _graph: Any, state: Any, _worker: Any) -> None:
            done = len(state["finished"])
            open_ = sum(len(state[name]) for name in ("ready", "waiting", "running"))
            show(done, done + open_)

        with Callback(posttask=after_task):
            yield
