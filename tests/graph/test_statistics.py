"""Chunks that statistics answer or prune are not read, and results equal NumPy's."""

import operator
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from dask.layers import ArrayBlockwiseDep
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask.graph.tasks import reduce_block
from tests.frame.sealed import flip, stored_chunks
from tests.graph.pruning import REDUCTIONS, agree, chunks_read, computed, written
from tests.graph.pushdown import tasks_of


@pytest.fixture
def rows(tmp_path):
    """1,000 rows that grow from one to the next, some of them NaN, in 10 x 3 chunks."""
    array = np.arange(1000.0)[:, None] + np.linspace(0, 0.9, 30)
    array[250:260] = np.nan
    return written(tmp_path, array, (100, 10)), array


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("blocks", [None, "auto"], ids=str)
def test_nothing_is_read(rows, name, blocks):
    path, array = rows
    with chunks_read() as counts:
        found = computed(REDUCTIONS[name], da.from_b2nd(path, chunks=blocks), da)
    assert counts == []
    agree(found, computed(REDUCTIONS[name], array, np), name)


#: Programs over the fixture `rows`, and the number of chunks that they read.
READING = {
    "aligned": (lambda x, m: m.nanmean(x[300:700]), 0),
    "cut": (lambda x, m: m.nanmax(x[350:700, 5:]), 6),
    "columns": (lambda x, m: m.nanmin(x[:, 10:20]), 0),
    "any": (lambda x, m: (x > 2000).any(), 0),
    "sum along": (lambda x, m: (x > 2000).sum(axis=0), 0),
    "sum": (lambda x, m: (x >= 950).sum(), 3),
    "scaled": (lambda x, m: (x * 2 + 1 >= 1901).sum(), 3),
    "where": (lambda x, m: m.where(x > 950, x, -1), 3),
    "where of others": (lambda x, m: m.where(x > 950, x, m.ones((1000, 1)).cumsum(axis=0)), 3),
    "where of a slice": (lambda x, m: m.where(x > 950, 1, 2)[700:], 3),
    "nonzero": (lambda x, m: m.nonzero(x > 950)[1], 3),
    "chosen": (lambda x, m: x[x > 950], 3),
    "none chosen": (lambda x, m: x[(x > 950) & (x < 900)], 0),
    "dependent": (lambda x, m: (x > m.nanmax(x)).any(), 0),
    "NaN along": (lambda x, m: m.isnan(x).any(axis=0), 3),
}


@pytest.mark.parametrize("name", READING)
def test_only_chunks_in_doubt_are_read(rows, name):
    (path, array), (program, chunks) = rows, READING[name]
    with chunks_read() as counts:
        found = computed(program, da.from_b2nd(path), da)
    assert len(counts) == chunks
    np.testing.assert_array_equal(found, computed(program, array, np))


def test_sums_of_what_is_lost_in_between_are_read(tmp_path):
    x = da.from_b2nd(written(tmp_path, np.arange(100), (10,)))
    with chunks_read() as counts:
        assert ((x + 1e20) - 1e20).sum().compute() == 0
    assert len(counts) == 10


def test_sums_of_what_replaces_some_elements_read_these(tmp_path):
    array = np.arange(100)
    x = da.from_b2nd(written(tmp_path, array, (10,))) * 0.5
    with chunks_read() as counts:
        found = da.where(x > 22, 1.0, x).sum().compute()
    assert found == np.where(array * 0.5 > 22, 1.0, array * 0.5).sum()
    assert len(counts) == 1


def test_the_switch(rows):
    path, array = rows
    with chunks_read() as counts, dask.config.set({"b2nd_dask.statistics": False}):
        assert da.nanmax(da.from_b2nd(path)).compute() == np.nanmax(array)
        assert len(counts) == 30
    wrong = dask.config.set({"b2nd_dask.statistics": "perhaps"})
    with wrong, pytest.raises(ValueError, match=r"b2nd_dask\.statistics"):
        da.nanmax(da.from_b2nd(path)).compute()


def test_axes_are_kept_where_chunks_have_one_position(tmp_path):
    array = np.random.default_rng(1).random((20, 30, 40))
    x = da.from_b2nd(written(tmp_path, array, (1, 15, 40)))
    with chunks_read() as counts:
        np.testing.assert_array_equal(x.max(axis=(1, 2)).compute(), array.max(axis=(1, 2)))
        np.testing.assert_allclose(x[5:].mean(axis=(1, 2)), array[5:].mean(axis=(1, 2)))
        assert counts == []
        np.testing.assert_array_equal(x.max(axis=0).compute(), array.max(axis=0))
        assert len(counts) == 40


def test_one_task_for_any_number_of_blocks(rows):
    x = da.from_b2nd(rows[0])
    for result in (x.mean(), da.nanmax(x), (x > 2000).any(), x[300:600].sum()):
        (optimized,) = dask.optimize(result)
        assert len(optimized.__dask_graph__()) == 1
    deviation = x - da.nanmean(x)
    assert tasks_of(reduce_block, deviation) <= 1


def test_several_outputs_and_graphs_that_are_optimized_twice(rows):
    path, array = rows
    x = da.from_b2nd(path)
    with chunks_read() as counts:
        results = dask.compute(da.nanmean(x), x[3], da.nanmax(x) - da.nanmin(x), scheduler="sync")
    # of the row alone
    assert len(counts) == 3
    agree(results[0], np.nanmean(array), "mean")
    np.testing.assert_array_equal(results[1], array[3])
    assert results[2] == np.nanmax(array) - np.nanmin(array)
    (twice,) = dask.optimize(*dask.optimize(da.nanmean(x)))
    agree(twice.compute(), np.nanmean(array), "mean")
    (twice,) = dask.optimize(*dask.optimize(da.where(x > 950, x, 0)))
    np.testing.assert_array_equal(twice.compute(), np.where(array > 950, array, 0))


def test_plans(rows):
    x = da.from_b2nd(rows[0])
    assert b2nd_dask.plan(da.nanmean(x)).chunks == 0
    assert b2nd_dask.plan((x > 2000).any()).chunks == 0
    with dask.config.set({"b2nd_dask.statistics": False}):
        assert b2nd_dask.plan(da.nanmean(x)).chunks == 30


def test_times(tmp_path):
    array = np.datetime64("2020-01-01", "s") + np.arange(10_000).reshape(100, 100)
    array[5, 5] = "NaT"
    x = da.from_b2nd(written(tmp_path, array, (10, 100)))
    limit = np.datetime64("2020-01-01T02:00:00")
    with chunks_read() as counts:
        assert (x > limit).sum().compute() == (array > limit).sum()
        assert len(counts) == 1
        assert x.map_blocks(np.isnat).sum().compute() == 1
        assert x[20:40].min().compute() == array[20:40].min()
        assert np.isnat(x.max().compute())


UNITS = ["D", "h", "s", "ms", "ns"]
#: The last one is out of the range of nanoseconds.
MOMENTS = ["NaT", "1999-01-01", "2010-01-01", "2020-01-01", "9999-12-31"]


@pytest.mark.parametrize("kind", "Mm")
@settings(max_examples=25, deadline=None)
@given(
    days=st.lists(st.sampled_from(MOMENTS), min_size=1, max_size=6),
    units=st.tuples(st.sampled_from(UNITS), st.sampled_from(UNITS)),
)
def test_times_of_two_units(tmp_path_factory, kind, days, units):
    stored, asked = units
    values = np.array(days, f"M8[{stored}]")
    limit = np.datetime64("2010-01-01", asked)
    if kind == "m":
        values, limit = values.astype("i8").view(f"m8[{stored}]"), limit - np.datetime64(0, asked)
    path = tmp_path_factory.mktemp("times") / "x.b2nd"
    b2nd_dask.to_b2nd(values, path, chunks=(2,), stats=True)
    x = b2nd_dask.from_b2nd(path)
    for search in (
        lambda x: x[x > limit],
        lambda x: (x > limit).any(),
        lambda x: (x < limit).sum(),
        lambda x: (x == limit).sum(),
        lambda x: (x != limit).all(),
        lambda x: (limit <= x).sum(),
    ):
        try:
            expected = search(values)
        except OverflowError:
            # NumPy 2.5 raises for times out of the range of the other unit
            continue
        np.testing.assert_array_equal(search(x).compute(), expected)


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Casting complex")
def test_sums_as_integers(tmp_path, dtype):
    values = np.arange(12.0).reshape(4, 3).astype(dtype)
    values[1, 1] = np.nan
    b2nd_dask.to_b2nd(values, tmp_path / "x.b2nd", chunks=(2, 3), stats=True)
    x = b2nd_dask.from_b2nd(tmp_path / "x.b2nd")
    for how in ({"dtype": "i8"}, {"dtype": "i4"}, {"dtype": "i8", "axis": 1}):
        found = x.sum(**how).compute()
        with dask.config.set({"b2nd_dask.statistics": False}):
            np.testing.assert_array_equal(found, x.sum(**how).compute())


def test_chains_of_elements_that_are_used_twice(tmp_path):
    values = np.arange(60.0).reshape(6, 10)
    b2nd_dask.to_b2nd(values, tmp_path / "x.b2nd", chunks=(2, 5), stats=True)
    x = doubled = b2nd_dask.from_b2nd(tmp_path / "x.b2nd")
    for _ in range(40):
        doubled = doubled + doubled
    assert doubled.max().compute() == 59 * 2.0**40
    assert (doubled > 58.5 * 2.0**40).sum().compute() == 1
    np.testing.assert_array_equal(x[doubled > 57.5 * 2.0**40].compute(), [58, 59])


@pytest.mark.parametrize(
    "function",
    [np.cumsum, lambda block: block[::-1], lambda block: block - block.mean()],
    ids=["running", "backwards", "centred"],
)
def test_what_a_mask_chooses_may_depend_on_what_it_does_not(tmp_path, function):
    values = np.arange(1000.0)
    x = da.from_b2nd(written(tmp_path, values, (10,)), chunks=100)
    expected = function(values[900:])[values[900:] > 950]
    np.testing.assert_array_equal(x.map_blocks(function, dtype=float)[x > 950], expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("dtype", "scalar"), [("f4", 1e300), ("f2", 1e5)])
def test_scalars_that_overflow_or_vanish_in_the_dtype(tmp_path, dtype, scalar):
    values = np.linspace(-1, 1, 21, dtype=dtype)
    x = da.from_b2nd(written(tmp_path, values, (21,)))
    assert da.isnan(x * scalar).sum().compute() == 1
    assert not (x * scalar >= -np.inf).all().compute()
    assert da.isnan(x / (1e-4 / scalar)).sum().compute() == 1
    assert da.where(x * scalar >= -np.inf, 1, 0).sum().compute() == 20


@pytest.mark.parametrize("dtype", ["i8", "u1", "?"])
def test_no_warnings_of_its_own(tmp_path, dtype):
    x = da.from_b2nd(written(tmp_path, np.ones(20, dtype), (5,)))
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert da.isnan(x).sum().compute(scheduler="sync") == 0


class PositionSum(ArrayBlockwiseDep):
    """Passes to each block the sum of its position."""

    def __getitem__(self, position):
        return sum(position)


def test_blocks_with_exchanged_axes_or_arguments_of_their_own(tmp_path):
    array = np.kron([[0.0, 2], [1, 0]], np.ones((10, 10)))
    x = da.from_b2nd(written(tmp_path, array, (10, 10)))
    turned = da.blockwise(operator.gt, "ij", x, "ij", x, "ji", dtype=bool)
    assert turned.sum().compute() == (array > array.T).sum() == 100
    mask = da.blockwise(operator.gt, "ij", x, "ji", 1, None, dtype=bool)
    np.testing.assert_array_equal(x[mask].compute(), array[array.T > 1])
    limits = PositionSum(x.chunks)
    own = da.blockwise(operator.gt, "ij", x, "ij", limits, "ij", dtype=bool, align_arrays=False)
    assert own.sum().compute() == 100


def test_masks_of_masks(tmp_path):
    values = np.arange(60.0)
    x = da.from_b2nd(written(tmp_path, values, (10,)), chunks=30)
    chosen = x
    # an evaluation of all masks at each level would take minutes
    for limit in range(22):
        chosen = chosen[chosen > limit]
    np.testing.assert_array_equal(chosen.compute(), values[22:])
    sums = x
    for _ in range(40):
        sums = da.map_blocks(np.add, sums, sums.map_blocks(lambda block: block * 0))
    np.testing.assert_array_equal(da.where(sums > 50, sums, 0), np.where(values > 50, values, 0))


def test_layers_are_kept_where_fusion_is_off(rows):
    x = da.from_b2nd(rows[0])
    with dask.config.set({"optimization.fuse.active": False}):
        (optimized,) = dask.optimize(da.nanmean(x))
        assert len(optimized.__dask_graph__()) > 30


def test_changed_by_other_software(rows):
    import blosc2

    path, array = rows
    blosc2.open(str(path), mode="a")[500, 5] = array[500, 5] = 5000
    with chunks_read() as counts:
        assert da.nanmax(da.from_b2nd(path)).compute() == 5000
        assert len(counts) == 30


def test_a_cluster_reads_only_what_is_in_doubt(rows):
    path, array = rows
    # reading the first chunk is an error
    flip(path, stored_chunks(path)[0][2] - 1)
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    )
    with cluster, Client(cluster):
        x = da.from_b2nd(path)
        agree(da.nanmean(x).compute(), np.nanmean(array), "mean")
        assert (x >= 950).sum().compute() == (array >= 950).sum()
        np.testing.assert_array_equal(x[x > 950].compute(), array[array > 950])
        np.testing.assert_array_equal(da.where(x > 950, x, 0), np.where(array > 950, array, 0))
        with pytest.raises(b2nd_dask.ChecksumError):
            x.std().compute()


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_sums_that_wrap_around(tmp_path, dtype):
    array = np.arange(2**62, 2**62 + 400, dtype=dtype).reshape(20, 20)
    x = da.from_b2nd(written(tmp_path, array, (10, 10)))
    assert x.sum().compute() == array.sum()
    # the 64-bit sum of a chunk overflows
    assert x.mean().compute() == pytest.approx(2.0**62)


@pytest.mark.parametrize("dtype", ["f8", "i4", "?"])
def test_means_of_chunks_some_of_which_are_constant(tmp_path, dtype):
    array = np.r_[np.zeros(4), np.arange(1, 9)].astype(dtype)
    x = da.from_b2nd(written(tmp_path, array, (4,)))
    for found, expected in (
        (x.mean(), array.mean()),
        (da.nanmean(x), np.nanmean(array)),
        ((x * 0.5).mean(), (array * 0.5).mean()),
    ):
        assert found.compute() == expected


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.astype("f4") * np.float32(1e38) / np.float32(1e30),
        lambda x: (x.astype("f2") * np.float16(0.25) + np.float16(2000)) - np.float16(2000),
    ],
    ids=["infinite on the way", "of few digits"],
)
def test_sums_that_do_not_follow_a_line_are_read(tmp_path, work):
    array = np.array([1] * 7 + [20] * 9, "i4")
    y = work(da.from_b2nd(written(tmp_path, array, (8,))))
    expected = work(array).astype("f8").mean()
    np.testing.assert_allclose(y.mean(dtype="f8").compute(), expected, rtol=1e-3)
