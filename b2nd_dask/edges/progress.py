"""How far long work is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dask.callbacks import Callback

#: Takes how much is done, and of how much.
Progress = Callable[[int, int], None]


@contextmanager
def tasks_shown(show: Progress) -> Iterator[None]:
    """Show how many tasks are done of what dask computes in threads while the block runs."""

    def after_task(_key: Any, _result: Any, _graph: Any, state: Any, _worker: Any) -> None:
        done = len(state["finished"])
        open_ = sum(len(state[name]) for name in ("ready", "waiting", "running"))
        show(done, done + open_)

    with Callback(posttask=after_task):
        yield
