"""Progress of long computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dask.callbacks import Callback

#: Takes the number of finished steps and the number of all steps.
Progress = Callable[[int, int], None]


@contextmanager
def tasks_shown(show: Progress) -> Iterator[None]:
    """Report the finished tasks of dask's local schedulers while the block runs."""

    def after_task(_key: Any, _result: Any, _graph: Any, state: Any, _worker: Any) -> None:
        done = len(state["finished"])
        open_ = sum(len(state[name]) for name in ("ready", "waiting", "running"))
        show(done, done + open_)

    with Callback(posttask=after_task):
        yield
