"""How many threads decode what one index selects."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import open_b2nd

if TYPE_CHECKING:
    from pathlib import Path

#: Of which each chunk takes long enough that threads share them.
VALUES = np.random.default_rng(7).random(4_000_000)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "x.b2nd"
    blosc2.asarray(VALUES, urlpath=str(path), chunks=(200_000,), blocks=(20_000,))
    return path


def started_by(work: Any) -> set[int]:
    """Threads that work in a thread of its own starts."""
    seen: set[int] = set()

    def note(*_: Any) -> None:
        seen.add(threading.get_ident())

    def run() -> int:
        threading.setprofile(note)
        try:
            work()
        finally:
            threading.setprofile(None)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        own = pool.submit(run).result()
    # the first read also starts the thread that frees unused memory
    idle = {each.ident for each in threading.enumerate() if each.name == "b2nd_dask-idle"}
    return seen - {own} - idle


@pytest.mark.parametrize(("threads", "more"), [(None, 0), (1, 0), (2, 1), (3, 2)])
def test_as_many_as_are_asked_for(path: Path, threads: int | None, more: int) -> None:
    frame = open_b2nd(path, threads=threads)
    for same in (frame, pickle.loads(pickle.dumps(frame))):
        found = []
        started = started_by(lambda same=same, found=found: found.append(same[5:]))
        # a worker that is done early may take the work of one that was to come
        assert min(more, 1) <= len(started) <= more
        np.testing.assert_array_equal(found[0], VALUES[5:])


def test_one_has_to_read(path: Path) -> None:
    with pytest.raises(ValueError, match="threads=0: give 1 or more"):
        open_b2nd(path, threads=0)
