"""Processes with different versions of the package, or different files."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import numpy as np
import pytest
from dask.base import tokenize

from b2nd_dask import VersionMismatchError, _version, from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.compressed import compress
from b2nd_dask.frame.open import cache
from b2nd_dask.graph.expression.program import ELEMENTS
from b2nd_dask.graph.expression.pruning import false_chunks
from b2nd_dask.graph.read.blocks import ReadBlocks
from b2nd_dask.storage.read.local_reader import identity_of
from tests.forked import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VALUES = np.arange(600.0).reshape(20, 30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.b2nd"
    blosc2.asarray(VALUES, urlpath=str(path), chunks=(6, 10), blocks=(3, 5))
    return path


def _blocks(path: Path, axes: tuple[int, int] = (0, 1), *predicate: Any) -> ReadBlocks:
    frame = reference_of(open_b2nd(path))
    return ReadBlocks(
        frame, tuple(map(range, frame.shape)), axes, from_b2nd(path).chunks, *predicate
    )


def _write(path: Path) -> Any:
    return to_b2nd(from_b2nd(path) + 1, path.with_name("y.b2nd"), compute=False)


#: Functions that make an object to send, and functions that use it in the other process.
SENT: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "frame": (open_b2nd, lambda frame: frame[0]),
    "graph": (lambda path: from_b2nd(path).sum(), lambda x: x.compute(scheduler="sync")),
    "blocks": (_blocks, lambda blocks: blocks[0, 0]),
    "block": (lambda path: _blocks(path)[0, 0], lambda block: block.elements()),
    "write": (_write, lambda written: written.compute(scheduler="sync")),
    "compressed": (lambda path: compress(VALUES), lambda small: small[0]),
}


def test_blocks_are_told_apart_by_what_they_read(path: Path) -> None:
    other = path.with_name("other.b2nd")
    blosc2.asarray(VALUES, urlpath=str(other), chunks=(6, 10), blocks=(3, 5))
    blocks = _blocks(path)
    same = [_blocks(path), pickle.loads(pickle.dumps(blocks))]
    assert {tokenize(found) for found in same} == {tokenize(blocks)}
    frame = reference_of(open_b2nd(path))
    others = [
        _blocks(other),
        ReadBlocks.whole(frame, from_b2nd(path, chunks=(12, 10)).chunks),
        _blocks(path, (1, 0)),
        _blocks(path, (0, 1), partial(false_chunks, ELEMENTS)),
    ]
    assert len({tokenize(found) for found in (blocks, *others)}) == 5
    assert tokenize(_blocks(path, (1, 0))) == tokenize(_blocks(path, (1, 0)))


@pytest.mark.parametrize("kind", SENT)
def test_another_version_is_named(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make, use = SENT[kind]
    sent = pickle.dumps(make(path))
    use(pickle.loads(sent))
    path.with_name("y.b2nd").unlink(missing_ok=True)
    monkeypatch.setattr(_version, "__version__", "99.1")
    with pytest.raises(VersionMismatchError) as caught:
        use(pickle.loads(sent))
    own = re.escape(socket.gethostname())
    assert re.search(rf"b2nd-dask \d.*host {own}, process {os.getpid()}.* 99\.1", str(caught.value))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(caught.value) in caplog.text


def test_what_tasks_carry_unpickles_and_travels_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot unpickle a task would end, and dask would repeat the task on others."""
    sent = pickle.dumps(reference_of(open_b2nd(path)))
    monkeypatch.setattr(_version, "__version__", "99.1")
    seen = pickle.loads(pickle.dumps(pickle.loads(sent)))
    for use in (lambda: seen.shape, lambda: seen[0], lambda: seen.read(0)):
        with pytest.raises(VersionMismatchError, match="process"):
            use()


def test_a_graph_unpickles_and_its_tasks_are_not_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that cannot unpickle a graph would not name the reason."""
    sent = pickle.dumps(from_b2nd(path).dask)
    monkeypatch.setattr(_version, "__version__", "99.1")
    graph = pickle.loads(sent)
    with pytest.raises(VersionMismatchError, match="process"):
        dict(graph)


def _read_elsewhere(sent: bytes) -> tuple[int, str]:
    try:
        pickle.loads(sent)[0]
    except OSError as error:
        return os.getpid(), f"{type(error).__name__} {error}"
    return os.getpid(), "nothing"


def test_a_process_that_does_not_see_the_file_says_so(path: Path) -> None:
    sent = pickle.dumps(open_b2nd(path))
    path.rename(path.with_name("moved.b2nd"))
    pid, problem = run_forked(_read_elsewhere, sent)
    assert problem.startswith("FileNotFoundError [Errno 2] No such file or directory, seen from")
    assert f"host {socket.gethostname()}, process {pid}: " in problem
    assert str(path) in problem
    assert "same path" in problem


def test_another_file_of_the_same_name(path: Path) -> None:
    sent = pickle.dumps(open_b2nd(path))
    blosc2.asarray(VALUES * 2, urlpath=str(path), chunks=(6, 10), blocks=(3, 5), mode="w")
    cache.process_cache.clear()
    with pytest.raises(OSError, match=f"changed.*host {re.escape(socket.gethostname())}"):
        pickle.loads(sent)[0]


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_frame_that_is_open_and_gone_is_looked_for_by_name(
    tmp_path: Path, contiguous: bool
) -> None:
    x = to_b2nd(VALUES, tmp_path / "x.b2nd", chunks=(6, 10), contiguous=contiguous)
    assert x.max().compute(scheduler="sync") == VALUES.max()
    (tmp_path / "x.b2nd").rename(tmp_path / "moved.b2nd")
    with pytest.raises(FileNotFoundError, match=r"seen from host.*if it was not removed") as caught:
        (x + 1).compute(scheduler="sync")
    assert caught.value.filename == str(tmp_path / "x.b2nd")


def test_a_process_that_does_not_see_the_target_says_so(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    written = to_b2nd(from_b2nd(path) + 1, folder / "y.b2nd", compute=False)
    folder.rename(tmp_path / "unmounted")
    with pytest.raises(FileNotFoundError, match="seen from host") as caught:
        written.compute(scheduler="sync")
    assert f"there is no folder {folder}" in str(caught.value)
    assert caught.value.filename == str(folder / "y.b2nd")


@pytest.mark.parametrize("compute", [True, False])
def test_blocks_that_were_staged_elsewhere(path: Path, tmp_path: Path, compute: bool) -> None:
    """If hosts do not share a folder, some have no staging area of this write."""

    def elsewhere(block: np.ndarray) -> np.ndarray:
        for area in tmp_path.glob(".*.staging"):
            shutil.rmtree(area)
        return block

    x = from_b2nd(path).map_blocks(elsewhere, dtype="f8")
    seen = pytest.raises(FileNotFoundError, match=r"seen from host.*the staged files of other")
    with seen, dask.config.set(scheduler="sync"):
        to_b2nd(x, tmp_path / "y.b2nd", compute=compute).compute()
    assert list(tmp_path.iterdir()) == [path]


def test_a_shared_file_has_one_identity_on_all_hosts(path: Path) -> None:
    state = path.stat()
    other = os.stat_result([*state[:2], state.st_dev + 1, *state[3:]], _named(state))
    assert other.st_dev != state.st_dev
    assert identity_of(other) == identity_of(state)
    assert identity_of(other) != replace(identity_of(state), size=1)


def _named(state: os.stat_result) -> dict[str, int]:
    return {name: getattr(state, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
