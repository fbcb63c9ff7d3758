"""Neighbouring blocks that are reduced together are read by one task."""

import dask
import dask.array as da
import numpy as np
import pytest

from b2nd_dask.graph import merge
from b2nd_dask.graph.push_reduction import reduce_block
from tests.graph.pushing import ALWAYS_PUSHED, REDUCTIONS, many_blocks, outcome, same, tasks_of


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("name", sorted(ALWAYS_PUSHED))
def test_small_blocks_are_reduced_in_few_tasks(tmp_path, monkeypatch, name, axis):
    monkeypatch.setattr(merge, "CPU_COUNT", 2)
    x, array = many_blocks(tmp_path)
    plain = da.from_array(array, chunks=x.chunks)

    def reduced(a):
        return REDUCTIONS[name](a[3:] * 2, axis=axis)

    assert 2 * 4 <= tasks_of(reduce_block, reduced(x)) <= 64
    same(outcome(reduced, x), outcome(reduced, plain), exact=False)


def test_results_that_somebody_else_needs_stay(tmp_path):
    x, array = many_blocks(tmp_path)
    block_sums = da.reduction(x, da.chunk.sum, da.chunk.max, axis=(0, 1), dtype="f8")
    want = array.reshape(16, 5, 16, 5).sum(axis=(1, 3)).max()
    assert block_sums.compute() == want
    total, mean = dask.compute(x.sum(), x.mean(axis=0))
    np.testing.assert_allclose(total, array.sum(), rtol=1e-6)
    np.testing.assert_allclose(mean, array.mean(axis=0), rtol=1e-6)


def test_blocks_with_results_of_other_tasks_are_reduced_alone(tmp_path):
    x, array = many_blocks(tmp_path)
    row = dask.delayed(np.arange)(5.0)
    got = da.map_blocks(np.add, x, row, dtype="f8").sum()
    np.testing.assert_allclose(got.compute(), array.sum() + 80 * 16 * 10, rtol=1e-6)
    spread = ((x - x.mean()) ** 2).sum()
    np.testing.assert_allclose(spread.compute(), ((array - array.mean()) ** 2).sum(), rtol=1e-5)
