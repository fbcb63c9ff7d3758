"""Neighbouring blocks that are reduced together are read by one task."""

from functools import partial

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.reductions import chunk_min
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask import from_b2nd
from b2nd_dask.graph.tasks import reduce_block
from tests.graph.pushdown import (
    ALWAYS_PUSHED,
    REDUCTIONS,
    computing_with,
    many_blocks,
    outcome,
    same,
    tasks_of,
)

NAMES = sorted(ALWAYS_PUSHED - {"prod", "nanprod"})
#: Each reduction along all axes or one; for each number of partial results, one reduction both.
MERGED = {
    *((name, 1 if i % 2 else None) for i, name in enumerate(NAMES)),
    *((name, axis) for name in ("mean", "var") for axis in (1, None)),
}


@pytest.mark.parametrize(("name", "axis"), sorted(MERGED, key=str))
def test_small_blocks_are_reduced_in_few_tasks(tmp_path, name, axis):
    x, array = many_blocks(tmp_path)
    plain = da.from_array(array, chunks=40)

    def reduced(a):
        return REDUCTIONS[name](a[3:] * 2, axis=axis)

    with computing_with(threads=2):
        assert 2 * 4 <= tasks_of(reduce_block, reduced(x)) <= 64
    same(outcome(reduced, x), outcome(reduced, plain), exact=False)


def test_a_result_that_is_combined_twice_counts_twice(tmp_path):
    """A layer of dask's own functions that is not one of its reductions."""
    x, array = many_blocks(tmp_path)
    total = x.sum(axis=0)
    graph = total.dask
    name = next(name for name in graph.layers if "partial" in name)
    tasks = dict(graph.layers[name])
    for key, (func, results) in list(tasks.items()):
        tasks[key] = func, [results[0], *results]
    changed = HighLevelGraph({**graph.layers, name: tasks}, graph.dependencies)
    twice = da.Array(changed, total.name, total.chunks, total.dtype)
    with dask.config.set({"b2nd_dask.optimize": False}):
        want = twice.compute()
    assert not np.allclose(want, array.sum(axis=0))
    same(twice.compute(), want, exact=False)


def test_results_that_somebody_else_needs_stay(tmp_path):
    x, array = many_blocks(tmp_path)
    block_sums = da.reduction(x, da.chunk.sum, da.chunk.max, axis=(0, 1), dtype="f8")
    want = array.reshape(16, 5, 16, 5).sum(axis=(1, 3)).max()
    assert block_sums.compute() == want
    total, mean = dask.compute(x.sum(), x.mean(axis=0))
    np.testing.assert_allclose(total, array.sum(), rtol=1e-6)
    np.testing.assert_allclose(mean, array.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
def test_blocks_of_no_elements_are_reduced_alone(tmp_path, array_type):
    # together they would need a block that the other array does not have
    library = da if array_type == "dask" else pytest.importorskip("dask_array")
    x = from_b2nd(blosc2.zeros((4, 9, 5)), chunks=(4, 9, 4), array_type=array_type)
    other = library.from_array(np.ones((9, 5)), chunks=(9, 4))
    assert (x - other)[4:].sum().compute() == 0.0
    assert (x - other)[4:].sum(axis=2).compute().shape == (0, 9)
    sizes = ((0, 4, 0), 9, (0, 3, 2))
    assert (x.rechunk(sizes) - other.rechunk(sizes[1:])).sum().compute() == -180.0


def test_blocks_with_results_of_other_tasks_are_reduced_alone(tmp_path):
    x, array = many_blocks(tmp_path)
    row = dask.delayed(np.arange)(5.0)
    got = da.map_blocks(np.add, x, row, dtype="f8").sum()
    np.testing.assert_allclose(got.compute(), array.sum() + 80 * 16 * 10, rtol=1e-6)
    spread = ((x - x.mean()) ** 2).sum()
    np.testing.assert_allclose(spread.compute(), ((array - array.mean()) ** 2).sum(), rtol=1e-5)


def test_blocks_from_side_by_side_that_are_stacked_stay_apart(tmp_path):
    x, array = many_blocks(tmp_path)

    def stacked(a):
        columns = np.concatenate if isinstance(a, np.ndarray) else da.concatenate
        return columns([a[:5, at : at + 5] for at in range(0, 80, 5)])

    for axis in (0, (0,), (0, 1)):
        with computing_with(threads=2):
            got = stacked(x).sum(axis=axis, split_every=2).compute()
        np.testing.assert_allclose(got, stacked(array).sum(axis=axis))


ALMOST_ALIKE = {
    "dtypes": (lambda x: (x * 100).astype("f8"), lambda x: (x * np.int64(100)).astype("f8")),
    "signs": (lambda x: 1 / (x * 0.0), lambda x: 1 / (x * -0.0)),
    "keywords": (
        lambda x: 1 / (x * np.nan).map_blocks(np.nan_to_num, nan=0.0),
        lambda x: 1 / (x * np.nan).map_blocks(np.nan_to_num, nan=-0.0),
    ),
}


@pytest.mark.parametrize("name", ALMOST_ALIKE)
def test_blocks_that_are_worked_on_differently_stay_apart(tmp_path, name):
    one, other = ALMOST_ALIKE[name]
    array = np.full(320, 100, "i1")
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10,), blocks=(10,))
    x, plain = from_b2nd(tmp_path / "x.b2nd"), da.from_array(array, chunks=10)

    def mixed(a):
        parts = [a[at : at + 10] for at in range(0, 320, 10)]
        parts = [other(part) if i == 17 else one(part) for i, part in enumerate(parts)]
        return da.concatenate(parts)

    for reduction in (da.sum, da.max, da.min):
        with computing_with(threads=2):
            got = outcome(lambda a, f=reduction: f(mixed(a), split_every=4), x)
        want = outcome(lambda a, f=reduction: f(mixed(a), split_every=4), plain)
        same(got, want, exact=False)


#: Chunk steps, combining and aggregating steps that dask's own reductions do not make.
OWN_STEPS = {
    "initial": (da.chunk.sum, partial(da.chunk.sum, initial=1.0), da.chunk.sum),
    "initial at the end": (da.chunk.sum, None, partial(da.chunk.sum, initial=1.0)),
    "where": (da.chunk.sum, partial(da.chunk.sum, where=False), da.chunk.sum),
    "dtype": (da.chunk.sum, partial(da.chunk.sum, dtype="u1"), da.chunk.sum),
    "two dtypes": (
        partial(da.chunk.sum, dtype="f8"),
        partial(da.chunk.sum, dtype="i8"),
        da.chunk.sum,
    ),
    "least of all": (chunk_min, partial(da.chunk.min, initial=-9.0), da.chunk.min),
}


@pytest.mark.parametrize("name", OWN_STEPS)
def test_combining_steps_with_keywords_of_their_own_are_kept(tmp_path, name):
    step, combine, aggregate = OWN_STEPS[name]
    array = np.arange(256.0) % 7
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(2,), blocks=(2,))
    x = from_b2nd(tmp_path / "x.b2nd")

    def reduced(a):
        return da.reduction(
            a * 1.5, step, aggregate, combine=combine, dtype="f8", split_every=4
        ).compute(scheduler="sync")

    with computing_with(threads=2):
        assert reduced(x) == reduced(da.from_array(array, chunks=x.chunks))
