"""What dask's dashboard calls the tasks: `key_split` of keys, which drops words with digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from dask.utils import key_split

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd

WRITING = {"open_b2nd", "write_b2nd", "merge_b2nd", "commit_b2nd"}


class Names(Callback):
    """Collects what a dashboard would show of the tasks that run."""

    def __init__(self) -> None:
        self.shown: set[str] = set()

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.shown.add(key_split(key))


def shown_of(call: Callable[[], object]) -> set[str]:
    with Names() as names, dask.config.set(scheduler="sync"):
        call()
    return names.shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.b2nd"
    to_b2nd(np.arange(10000.0).reshape(100, 100), path, chunks=(30, 100))
    return path


def test_reads(path: Path) -> None:
    x = from_b2nd(path)
    assert x.name.startswith("read_b2nd-")
    finish = "finalize-hlgfinalizecompute"
    assert shown_of(x.compute) == {"read_b2nd", finish}
    assert shown_of(from_b2nd(open_b2nd(path), chunks="auto").compute) <= {"read_b2nd", finish}
    # a read that becomes part of another task has its name, as with any array of dask
    assert shown_of(x.sum().compute) <= {"sum", "sum-partial", "sum-aggregate", finish}
    assert not shown_of((x * 2 + 1)[3:50].compute) & {"read", "from", "b2nd"}
    assert {key_split(key) for key in x.__dask_graph__()} == {"read_b2nd"}
    assert {key_split(key) for key in x.sum().__dask_graph__()} >= {"read_b2nd"}
    assert from_b2nd(path, name="mine").name == "mine"


def test_writes(path: Path, tmp_path: Path) -> None:
    x = from_b2nd(path)
    new = tmp_path / "new.b2nd"
    assert shown_of(lambda: to_b2nd(x * 2, new)) == WRITING
    assert shown_of(lambda: to_b2nd(x * 2, new, mode="w", contiguous=False)) == WRITING
    made = to_b2nd(x * 2, tmp_path / "later.b2nd", compute=False)
    assert {key_split(key) for key in made.__dask_graph__()} == WRITING
    assert shown_of(lambda: made.compute()) == WRITING


def test_constants(tmp_path: Path) -> None:
    ones = da.ones((100, 100), chunks=(30, 100))
    shown = shown_of(lambda: to_b2nd(ones, tmp_path / "ones.b2nd"))
    assert shown <= WRITING | {"known_b2nd"}


def test_changes(path: Path) -> None:
    x = from_b2nd(path)
    rows = da.ones((7, 100), chunks=3).cumsum(axis=0)
    for how in ({"mode": "r+", "region": slice(25, 32)}, {"mode": "a", "append_axis": 0}):
        shown = shown_of(lambda how=how: to_b2nd(rows, path, **how))
        assert shown >= WRITING
        x = from_b2nd(path)
        assert "read" not in shown
        assert "from" not in shown
        assert "open" not in shown
    assert x.shape == (107, 100)


def test_a_write_that_goes_on(path: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.b2nd"
    failing = from_b2nd(path).map_blocks(_fail_at_the_end, dtype="f8")
    with pytest.raises(RuntimeError, match="half-way"), dask.config.set(scheduler="sync"):
        to_b2nd(failing, new, resume=True)
    graph = to_b2nd(failing, new, resume=True, compute=False).__dask_graph__()
    assert {key_split(key) for key in graph} == WRITING | {"known_b2nd"}


def _fail_at_the_end(block: np.ndarray) -> np.ndarray:
    if block[-1, -1] == 9999:
        raise RuntimeError("half-way")
    return block
