"""Reductions and indices of frames return the results of dask for arrays in memory."""

import logging
import operator
import weakref
from functools import partial

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task
from dask.blockwise import BlockwiseDepDict, blockwise
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, to_b2nd
from b2nd_dask.graph.expression.nodes import Elemwise, Read
from b2nd_dask.graph.expression.program import compile_tree
from b2nd_dask.graph.optimize.optimizer import RULE_NAMES
from b2nd_dask.graph.optimize.rewrite import rewritten
from b2nd_dask.graph.tasks import compute_block, index_block, reduce_block
from tests.graph.pushdown import (
    ALWAYS_PUSHED,
    REDUCTIONS,
    WORK,
    calls,
    elements_read,
    frames,
    modes,
    nbytes_at_once,
    nodes_in,
    outcome,
    reducing_at_once,
    same,
    small_frame,
    tasks_of,
)


@given(data=st.data())
def test_reductions(fresh_path, data):
    frame, plain = data.draw(frames(fresh_path))
    axes = st.sets(st.integers(0, frame.ndim - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    axis = data.draw(st.none() | axes)
    name = data.draw(st.sampled_from(sorted(REDUCTIONS)))
    work = WORK[data.draw(st.sampled_from(sorted(WORK)))]
    index = tuple(
        slice(data.draw(st.integers(0, n)), None, data.draw(st.integers(1, 3))) for n in frame.shape
    )
    if data.draw(st.booleans()):
        frame, plain = frame[index], plain[index]

    def reduced(x):
        return REDUCTIONS[name](work(x), axis=axis)

    with reducing_at_once(data.draw(nbytes_at_once)):
        got = outcome(reduced, frame, data.draw(modes))
    same(got, outcome(reduced, plain), exact=False)


PUSHED_WORK = sorted(WORK.keys() - {"other task"})
#: Each reduction with two kinds of work, and each kind of work with at least three reductions.
PUSHED = {
    *((name, PUSHED_WORK[i % 8]) for i, name in enumerate(sorted(ALWAYS_PUSHED))),
    *((name, "scalars") for name in ALWAYS_PUSHED),
    *((name, work) for name in ("sum", "nanmax", "var") for work in PUSHED_WORK),
}


@pytest.mark.parametrize(("name", "work"), sorted(PUSHED))
def test_reductions_are_pushed(tmp_path, name, work):
    blosc2.asarray(
        np.ones((20, 30)), urlpath=str(tmp_path / "x.b2nd"), chunks=(5, 10), blocks=(5, 5)
    )
    x = from_b2nd(tmp_path / "x.b2nd")
    assert tasks_of(reduce_block, REDUCTIONS[name](WORK[work](x), axis=0)) == 12
    one_block = from_b2nd(tmp_path / "x.b2nd", chunks=-1)
    assert tasks_of(reduce_block, REDUCTIONS[name](WORK[work](one_block[2:, ::3]))) == 1


def test_a_transpose_of_an_argument_with_fewer_axes_is_pushed(tmp_path):
    array, row = np.arange(600.0).reshape(20, 30), np.arange(30.0)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10, 10))
    blosc2.asarray(row, urlpath=str(tmp_path / "row.b2nd"), chunks=(10,))
    found = (from_b2nd(tmp_path / "x.b2nd") * from_b2nd(tmp_path / "row.b2nd")).T
    assert tasks_of(np.transpose, found) == 0
    np.testing.assert_array_equal(found, (array * row).T)


def test_a_user_function_gets_an_array_of_the_block(tmp_path):
    blosc2.asarray(np.arange(600.0).reshape(20, 30), urlpath=str(tmp_path / "x.b2nd"))
    x = from_b2nd(tmp_path / "x.b2nd", chunks=(10, 10))
    seen = []

    def mine(block):
        seen.append((type(block), block.shape))
        return block + 1

    total = x.map_blocks(mine, dtype="f8", meta=np.empty((0, 0))).sum()
    assert tasks_of(reduce_block, total) == 0
    assert total.compute(scheduler="sync") == np.arange(600).sum() + 600
    assert seen == [(np.ndarray, (10, 10))] * 6


def test_the_setting_of_the_user_wins(tmp_path):
    blosc2.asarray(np.arange(600.0), urlpath=str(tmp_path / "x.b2nd"))
    calls = []

    def mine(dsk, keys, **kwargs):
        calls.append(keys)
        return da.optimize(dsk, keys, **kwargs)

    with dask.config.set(array_optimize=mine):
        assert from_b2nd(tmp_path / "x.b2nd").sum().compute() == np.arange(600).sum()
    assert calls


INDICES = {
    "integer": lambda x, n: x[n // 2],
    "steps": lambda x, n: x[::3],
    "backwards": lambda x, n: x[::-2],
    "list": lambda x, n: x[[n - 1, 0, 0, n // 2]],
    "negative list": lambda x, n: x[[-1, -n]],
    "empty list": lambda x, n: x[[]],
    "new axis": lambda x, n: x[None, 1 % n],
    "mask": lambda x, n: x[np.arange(n) % 3 == 0],
    "points": lambda x, n: x.vindex[tuple([0, s - 1, s // 2] for s in x.shape)],
    "points and slices": lambda x, n: x.vindex[([0, n - 1],) + (slice(None),) * (x.ndim - 1)],
}


@given(data=st.data())
def test_indices(fresh_path, data):
    frame, plain = data.draw(frames(fresh_path))
    index = INDICES[data.draw(st.sampled_from(sorted(INDICES)))]
    work = WORK[data.draw(st.sampled_from(sorted(WORK)))]

    def indexed(x):
        return index(work(x), x.shape[0])

    got = outcome(indexed, frame, data.draw(modes))
    same(got, outcome(indexed, plain), exact=True)


@pytest.mark.parametrize("name", sorted(INDICES.keys() - {"empty list"}))
def test_indices_behind_work_are_pushed(tmp_path, name):
    blosc2.asarray(
        np.ones((20, 30)), urlpath=str(tmp_path / "x.b2nd"), chunks=(5, 10), blocks=(5, 5)
    )
    for chunks in (None, -1):
        indexed = INDICES[name](from_b2nd(tmp_path / "x.b2nd", chunks=chunks) * 2 + 1, 20)
        if name in ("integer", "steps", "backwards", "new axis"):
            assert elements_read(indexed) == indexed.size
            assert tasks_of(compute_block, indexed) == indexed.npartitions
        else:
            assert tasks_of(index_block, indexed) > 0
            assert elements_read(indexed) == 0


def test_indices_of_processes_and_clusters_pickle(tmp_path):
    array = np.arange(600.0).reshape(20, 30)
    path = small_frame(tmp_path, array)
    x = from_b2nd(path) * 2
    wanted = [x[3], x.mean(axis=0), x.vindex[[1, 2], [3, 4]], x[[1, 7]]]
    got = dask.compute(*wanted, scheduler="processes", num_workers=2)
    doubled = array * 2
    want = [doubled[3], doubled.mean(axis=0), doubled[[1, 2], [3, 4]], doubled[[1, 7]]]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b)


def test_work_with_an_array_of_another_task_takes_the_plain_way(tmp_path):
    array = np.arange(600.0).reshape(20, 30)
    path = small_frame(tmp_path, array)
    x = from_b2nd(path, chunks=-1)
    row = da.arange(30, chunks=30)
    np.testing.assert_allclose((x * row).sum(axis=0).compute(), (array * np.arange(30)).sum(axis=0))
    np.testing.assert_allclose((x * row)[3].compute(), array[3] * np.arange(30))
    assert operator.is_(type((x * row).sum(axis=0).compute()), np.ndarray)


def test_a_masked_value_of_another_task_masks(tmp_path):
    array = np.arange(600.0).reshape(20, 30)
    x = from_b2nd(small_frame(tmp_path, array))
    hidden = da.ma.masked_array(da.ones(3), mask=True).sum()
    for lazy in ((x + hidden).sum(), (x * hidden).max(axis=0)[3], (x + hidden)[2, 3]):
        assert lazy.compute(scheduler="sync") is np.ma.masked


def test_fields_of_structured_items(tmp_path):
    array = np.zeros((20, 30), [("a", "f8"), ("b", ">i4")])
    array["a"], array["b"] = np.arange(600.0).reshape(20, 30), 7
    x = from_b2nd(small_frame(tmp_path, array))
    np.testing.assert_array_equal(x["a"].compute(), array["a"])
    assert x["a"].sum().compute() == array["a"].sum()
    np.testing.assert_array_equal(x["b"][3].compute(), array["b"][3])
    assert x[["a", "b"]].compute().dtype.names == ("a", "b")


@pytest.mark.parametrize("dtype", [">f8", ">i2", [("a", ">i4"), ("b", "<f8")]])
def test_lists_keep_the_byte_order(tmp_path, dtype):
    array = np.arange(600).reshape(20, 30).astype(dtype)
    x = from_b2nd(small_frame(tmp_path, array), chunks=-1)
    for selection in (np.s_[[3, 1, 3]], np.s_[:, [29, 0]], np.s_[2:9, [4, 4]]):
        got = x[selection].compute()
        assert got.dtype == array.dtype
        assert got.tobytes() == array[selection].tobytes()


def test_lists_of_persisted_arrays_beside_reads(tmp_path):
    array = np.arange(600.0).reshape(20, 30)
    x = from_b2nd(small_frame(tmp_path, array))
    with LocalCluster(1, processes=False, dashboard_address=":0") as cluster, Client(cluster):
        kept = (x * 2).persist()
        got = dask.compute(kept[[1, 2, 19]], x.sum(), (kept[[1, 2]] + x[[1, 2]]).sum())
        beside = dask.compute((kept + x * 3).sum(axis=0), kept[::2].T, (x + 1).max())
    np.testing.assert_array_equal(got[0], 2 * array[[1, 2, 19]])
    assert got[1:] == (array.sum(), 3 * array[[1, 2]].sum())
    np.testing.assert_array_equal(beside[0], (5 * array).sum(axis=0))
    np.testing.assert_array_equal(beside[1], 2 * array[::2].T)
    assert beside[2] == array.max() + 1


def times_numbers(x):
    """Blocks times numbers in the graph, one for each block."""
    numbers = {block: 1 + sum(block) for block in np.ndindex(*x.numblocks)}
    dep = BlockwiseDepDict(numbers, numblocks=x.numblocks)
    sizes = {x.name: x.numblocks}
    layer = blockwise(operator.mul, "times", "ij", x.name, "ij", dep, "ij", numblocks=sizes)
    graph = HighLevelGraph.from_collections("times", layer, [x])
    return da.Array(graph, "times", x.chunks, dtype=x.dtype)


#: Work with arguments that differ between blocks.
BESIDE = {
    "search in blocks with offsets": lambda x: da.argmin(x, axis=0),
    "no work that is understood": lambda x: x.map_blocks(np.sort),
    "not understood, then reduced": lambda x: x.map_blocks(np.sort).max(axis=1),
    "a result of another task for each block": lambda x: (x - x.mean(axis=0)).sum(axis=1),
    "a number for each block": lambda x: times_numbers(x).sum(axis=1),
    "an array beside": lambda x: (x + np.arange(60.0) * 3).sum(axis=1),
    "twice": lambda x: (x * 2 + x[::-1]).sum(axis=0),
    "two frames of other axes": lambda x: (x + x[3]).min(axis=1),
}


@pytest.mark.parametrize("name", BESIDE)
def test_blocks_of_data_and_of_constants_with_what_differs(tmp_path, name):
    array = np.random.default_rng(8).integers(-9, 9, (60, 60)) / 2
    array[:20], array[30:40, :30] = 0, 2.5
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10, 15), blocks=(5, 5))
    x = from_b2nd(tmp_path / "x.b2nd")
    got, want = (BESIDE[name](a) for a in (x, da.from_array(array, chunks=x.chunks)))
    np.testing.assert_allclose(got.compute(scheduler="sync"), want.compute(scheduler="sync"))


def test_long_chains_and_values_used_twice(tmp_path):
    array = np.ones((20, 30))
    x = from_b2nd(small_frame(tmp_path, array), chunks=-1)
    doubled, raised = x, x
    for _ in range(40):
        doubled = doubled + doubled
    for _ in range(300):
        raised = raised + 1
    assert tasks_of(reduce_block, doubled.sum()) == 1
    assert doubled.sum().compute() == 600 * 2.0**40
    assert doubled[3, 3].compute() == 2.0**40
    assert raised.sum().compute() == 600 * 301


def test_dask_fuses_few_layers_of_a_long_chain(tmp_path):
    """dask's fusion takes a time that grows with the square of the number of layers."""
    x = from_b2nd(small_frame(tmp_path, np.ones((20, 30))))
    # more than Python's limit of recursion
    for _ in range(1100):
        x = x + 1
    handed = []

    def optimized_by_dask(graph, keys):
        handed.append(len(graph.layers))
        return da.optimization.optimize(graph, keys)

    rewritten(optimized_by_dask, x.dask, x.__dask_keys__(), RULE_NAMES)
    assert handed[0] < 1100 / 20
    np.testing.assert_array_equal(x.compute(), np.full((20, 30), 1101.0))
    np.testing.assert_array_equal(x[3:, ::-2].compute(), np.full((17, 15), 1101.0))


def test_blocks_of_constants_are_scalars_where_shapes_agree(tmp_path):
    array = np.arange(5.0).reshape(1, 5)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"))
    x = from_b2nd(tmp_path / "x.b2nd")
    same = da.where(x > 2, x, da.ones_like(x)).sum()
    assert tasks_of(reduce_block, same) == 1
    assert same.compute() == 10
    taller = da.where(x > 2, x, da.ones((4, 5), chunks=-1))
    assert tasks_of(reduce_block, taller.sum()) == 0
    assert taller.sum().compute() == 40
    np.testing.assert_array_equal(taller[3].compute(), [1, 1, 1, 3, 4])
    np.testing.assert_array_equal(taller[:, 4].compute(), [4] * 4)


def test_results_of_steps_are_dropped_when_nobody_needs_them():
    made, most = [], 0

    class Watched(np.ndarray):
        def __array_finalize__(self, _):
            nonlocal most
            made.append(weakref.ref(self))
            most = max(most, sum(ref() is not None for ref in made))

    node = Read(None, (range(1),), (0,), ((1,),), ("read",))
    for number in range(20):
        node = Elemwise(np.sqrt, (node,), {}, ((1,),), (f"sqrt-{number}",))
    compile_tree(node).program.run(np.ones(1).view(Watched))
    assert len(made) > 20
    assert most <= 4


def reduced_both_ways(tmp_path, array, work, **frame):
    path = tmp_path / "x.b2nd"
    path.unlink(missing_ok=True)
    blosc2.asarray(array, urlpath=str(path), **frame)
    with np.errstate(all="ignore"):
        got = work(from_b2nd(path, chunks=-1)).compute(scheduler="sync")
        want = work(da.from_array(array, chunks=-1)).compute(scheduler="sync")
    assert np.asarray(got).dtype == np.asarray(want).dtype
    return got, want


@pytest.mark.parametrize("name", ["sum", "mean", "var", "nansum", "std"])
def test_half_floats_of_many_chunks(tmp_path, name):
    work = getattr(da, name)
    few = np.zeros((400, 400), "f2")
    few[0, 0] = 1
    got, want = reduced_both_ways(tmp_path, few, work, chunks=(200, 400), blocks=(50, 50))
    np.testing.assert_allclose(got, want, rtol=1e-3)
    many = np.random.default_rng(0).random((1000, 20)).astype("f2")
    got, _ = reduced_both_ways(tmp_path, many, work, chunks=(1, 20), blocks=(1, 20))
    np.testing.assert_allclose(got, work(many.astype("f8")).compute(), rtol=2e-3)


def test_single_floats_lose_nothing_over_many_chunks(tmp_path):
    many = np.random.default_rng(0).random((1000, 100)).astype("f4")
    # a sum of the elements one by one in float32 would be wrong by 4e-6
    for work in (da.sum, da.var):
        got, _ = reduced_both_ways(tmp_path, many, work, chunks=(1, 100), blocks=(1, 100))
        np.testing.assert_allclose(got, work(many.astype("f8")).compute(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i8", "f8"])
def test_products_of_constants(tmp_path, dtype):
    array = np.zeros((40, 40), "i8")
    array[:5] = 3
    work = lambda x: (x + 2).prod(dtype=dtype)  # noqa: E731
    got, want = reduced_both_ways(tmp_path, array, work, chunks=(20, 20), blocks=(10, 10))
    assert got == want
    one_chunk = np.zeros((1, 256), "i8")
    got, want = reduced_both_ways(tmp_path, one_chunk, work, chunks=(1, 256), blocks=(1, 256))
    assert got == want


def test_infinite_complex_constants(tmp_path):
    array = np.zeros((40, 40), "c16")
    array[0, 0] = 1j
    got, want = reduced_both_ways(
        tmp_path, array, lambda x: (x + np.inf).sum(), chunks=(20, 20), blocks=(10, 10)
    )
    assert got == want == complex(np.inf, 1)


def test_chunk_functions_with_other_keywords_take_the_plain_way(tmp_path):
    x = from_b2nd(small_frame(tmp_path, np.ones((20, 30))), chunks=-1)
    total = da.reduction(x, chunk=partial(np.sum, initial=5), aggregate=np.sum, dtype="f8")
    assert tasks_of(reduce_block, total) == 0
    assert total.compute() == 605


def test_a_row_that_is_used_twice_again_and_again_is_looked_at_once(tmp_path):
    # otherwise each sum of an array with itself would double the time
    values, row = np.arange(600.0).reshape(20, 30), np.arange(30.0).reshape(1, 30)
    x = from_b2nd(small_frame(tmp_path, values))
    y = from_b2nd(blosc2.asarray(row, chunks=(1, 10)).to_cframe())
    for _ in range(60):
        y, row = y + y, row + row
    # by two slices; the second one does not change the row
    found = (x * y)[:, 5:][3:].compute(scheduler="sync")
    np.testing.assert_array_equal(found, (values * row)[3:, 5:])


def test_an_index_that_is_an_array(tmp_path):
    array = np.arange(30.0)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10,), blocks=(5,))
    picked = da.blockwise(
        operator.getitem,
        "i",
        from_b2nd(tmp_path / "x.b2nd"),
        "i",
        np.array([0, 1, 2]),
        None,
        dtype="f8",
        adjust_chunks={"i": lambda _: 3},
        meta=np.empty(0),
    )
    assert picked.compute().tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_dasks_configuration_can_be_sent():
    assert dask.config.serialize(dask.config.global_config)


def test_tasks_that_read_are_marked_as_producers(tmp_path):
    x = from_b2nd(small_frame(tmp_path, np.ones((20, 30))))
    for lazy in (x.sum(), (x * 2)[3], (x * 2)[[3, 7]].max()):
        graph = da.Array.__dask_optimize__(lazy.__dask_graph__(), lazy.__dask_keys__())
        tasks = [task for task in graph.values() if type(task) is Task]
        reading = [any(map(_reads, nodes_in([task]))) for task in tasks]
        assert any(reading)
        assert [task.data_producer for task in tasks] == reading


def _reads(node):
    return any(calls(node, function) for function in (reduce_block, index_block, compute_block))


def test_single_numbers_that_overflow_do_not_warn(tmp_path):
    array = np.full(30, 200, "u1")
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10,), blocks=(5,))
    assert (from_b2nd(tmp_path / "x.b2nd") * np.uint8(2))[3].compute() == 144


def test_single_strings_are_worked_on_as_arrays_are(tmp_path):
    array = np.array(["a", "b", "c"] * 10)
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(10,), blocks=(5,))
    other = ~(from_b2nd(tmp_path / "x.b2nd") == "a")
    assert other[3].compute() == np.False_
    assert other[4].compute() == np.True_
    assert other[3].compute().dtype == bool


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
@pytest.mark.parametrize("stats", [False, True])
def test_work_that_refuses_other_elements_than_there_are(tmp_path, array_type, stats):
    # integers to negative powers raise an error
    if array_type == "dask-array":
        pytest.importorskip("dask_array")
    array = np.arange(2, 26).reshape(4, 6)
    path = tmp_path / "x.b2nd"
    to_b2nd(array, path, chunks=(2, 3), stats=stats)
    x = from_b2nd(path, array_type=array_type)
    assert (2 ** (x - 2)).sum().compute() == (2 ** (array - 2)).sum()
    np.testing.assert_array_equal((x ** (x - 2)).max(0).compute(), (array ** (array - 2)).max(0))
    np.testing.assert_array_equal((2.0 ** (x - 2)).mean(1).compute(), (2.0 ** (array - 2)).mean(1))


def test_a_condition_on_a_frame_beside_another_array(tmp_path, caplog):
    """A long chain becomes one layer, of the other array."""
    caplog.set_level(logging.DEBUG, "b2nd_dask")
    array = np.arange(80.0).reshape(8, 10)
    to_b2nd(array, tmp_path / "a.b2nd", chunks=(2, 10), stats=True)
    x = from_b2nd(tmp_path / "a.b2nd")
    got, want = da.from_array(array, chunks=x.chunks) + (x > 5), array + (array > 5)
    for _ in range(60):
        got, want = (got * 2) % 1000, (want * 2) % 1000
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)
    assert "leaves a graph" not in caplog.text


def test_layers_that_nothing_needs(tmp_path):
    """Graphs of several arrays that other software merges have such layers."""
    to_b2nd(np.arange(800.0), tmp_path / "a.b2nd", chunks=(10,))
    x = from_b2nd(tmp_path / "a.b2nd")
    total, other = (x * 2).sum(), (x * 2).map_blocks(np.sort)
    both = HighLevelGraph.merge(total.dask, other.dask)
    (alone,) = dask.optimize(total)
    (made,) = dask.optimize(da.Array(both, total.name, total.chunks, total.dtype))
    assert len(dict(made.dask)) == len(dict(alone.dask))
    assert made.compute() == np.arange(800).sum() * 2
