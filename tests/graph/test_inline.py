"""Blocks that would wait for a result of all blocks are read again."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.utils import assert_eq
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, to_b2nd
from b2nd_dask.graph.optimize import sharing
from tests.graph.pushdown import (
    computing_with,
    frames,
    many_blocks,
    modes,
    outcome,
    same,
    sums_of_lists,
)

NEEDED_TWICE = {
    "deviation": lambda x: x - x.mean(),
    "deviation of columns": lambda x: x - x.mean(axis=0),
    "range": lambda x: (x - x.min()) / (1 + x.max() - x.min()),
    "spread": lambda x: ((x * 2 - x.mean()) ** 2).sum(),
    "several": lambda x: da.stack([x.sum(), (x - x.mean()).std(), (x + x.max()).sum(), x.max()]),
    "row": lambda x: (x - x.mean())[:1],
    "unpacked": lambda x: (x.astype("f8") * 0.5) - (x.astype("f8") * 0.5).mean(),
    "list": lambda x: (x - x.sum())[[0, 0]],
    "lists of blocks": lambda x: sums_of_lists(x) - x.max(),
    "product": lambda x: da.tensordot(x - x.sum(), x, axes=(0, 0)),
    "overlap": lambda x: (x - x.mean()).map_overlap(np.negative, depth=1, boundary="none"),
}


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@given(data=st.data())
def test_blocks_that_are_needed_twice(fresh_path, data):
    frame, plain = data.draw(frames(fresh_path))
    work = NEEDED_TWICE[data.draw(st.sampled_from(sorted(NEEDED_TWICE)))]
    late = data.draw(st.sampled_from([0, 100, 2**28]))
    with computing_with(held=late):
        got = outcome(work, frame, data.draw(modes))
    same(got, outcome(work, plain), exact=False)


@pytest.mark.parametrize("name", ["deviation", "deviation of columns", "spread"])
def test_no_block_waits_for_a_result_of_all_blocks(tmp_path, name):
    x, _ = many_blocks(tmp_path)
    twice = NEEDED_TWICE[name](x)

    def reads():
        graph = da.Array.__dask_optimize__(twice.__dask_graph__(), twice.__dask_keys__())
        return sum(str(key[0]).startswith("read(") for key in graph)

    assert reads() == 16 * 16
    with computing_with(held=500):
        assert reads() == 0


@pytest.mark.parametrize(("dtype", "is_kept"), [("i2", False), ("f4", True), ("f8", True)])
def test_wide_elements_that_are_made_of_narrow_ones_do_not_wait(
    tmp_path, monkeypatch, dtype, is_kept
):
    # also if there is memory for all of them
    monkeypatch.setattr(sharing, "LATE_NBYTES", 500)
    values = np.arange(64 * 64).reshape(64, 64).astype(dtype)
    to_b2nd(da.from_array(values, chunks=8), tmp_path / "x.b2nd")
    unpacked = from_b2nd(tmp_path / "x.b2nd").astype("f8") * 0.5 + 3
    deviation = unpacked - unpacked.mean()
    graph = da.Array.__dask_optimize__(deviation.__dask_graph__(), deviation.__dask_keys__())
    kept = sum(str(key[0]).startswith("add-") for key in graph)
    assert kept == (64 if is_kept else 0)
    halves = values.astype("f8") * 0.5
    assert_eq(deviation, halves - halves.mean())


def test_what_is_used_twice_again_and_again_is_looked_at_once(tmp_path):
    # otherwise each sum of an array with itself would double the time
    x, values = many_blocks(tmp_path)
    x, values = x.astype("f8"), values.astype("f8")
    for _ in range(60):
        x, values = x + x, values + values
    with computing_with(held=500):
        found = (x - x.mean()).compute(scheduler="sync")
    np.testing.assert_allclose(found, values - values.mean(), atol=values.max() * 1e-12)


@pytest.mark.slow
def test_each_of_many_dependents_is_looked_at_once(tmp_path, monkeypatch):
    x, plain = many_blocks(tmp_path)
    looked = Mock(side_effect=sharing._LateReads._is_late)
    monkeypatch.setattr(sharing._LateReads, "_is_late", lambda *args: looked(*args))
    with computing_with(held=500):
        sums = dask.compute([(x + number).sum() for number in range(50)])[0]
    np.testing.assert_allclose(sums, [(plain + number).sum() for number in range(50)])
    assert 50 <= looked.call_count < 3 * 50


def test_blocks_from_a_network_are_read_once(tmp_path, http_server):
    many_blocks(tmp_path)
    x = from_b2nd(http_server.put("once.b2nd", (tmp_path / "x.b2nd").read_bytes()))
    deviation = x - x.mean()
    with computing_with(held=500):
        graph = da.Array.__dask_optimize__(deviation.__dask_graph__(), deviation.__dask_keys__())
    assert sum(str(key[0]).startswith("read(") for key in graph) == 16 * 16


@pytest.mark.slow
def test_memory_for_deviations_does_not_grow_with_the_array(tmp_path):
    script = """
import resource, sys
import dask, numpy as np
from b2nd_dask import from_b2nd, to_b2nd
from benchmarks.memory import peak_resident
row = dask.array.arange(1000_000, chunks=1000_000, dtype="f8")
to_b2nd(dask.array.stack([row] * 100), sys.argv[1])
x = from_b2nd(sys.argv[1])
limit = 4 << 30
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = peak_resident()
with dask.config.set(scheduler="threads", num_workers=2):
    print((x - x.mean()).std().compute())
print(peak_resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.b2nd")],
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    deviation, growth = map(float, done.stdout.split())
    np.testing.assert_allclose(deviation, np.arange(1e6).std())
    assert growth < 200 << 20  # of 800 MB
