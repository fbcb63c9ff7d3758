"""Reductions of `x[mask]` with several axes, which dask flattens before it selects."""

import operator

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask.graph.optimize import sharing
from b2nd_dask.graph.tasks import reduce_block
from tests.graph.pruning import chunks_read, written
from tests.graph.pushdown import tasks_of
from tests.strategies import examples

#: NumPy and dask also warn for arrays in memory.
pytestmark = pytest.mark.filterwarnings("ignore")

REDUCTIONS = (
    "sum", "mean", "min", "max", "any", "all", "prod", "std", "var",
    "nansum", "nanmean", "nanstd", "nanprod",
)  # fmt: skip
MASKS = {
    "some": lambda x, other: x > x.dtype.type(3),
    "nothing": lambda x, other: (x > x.dtype.type(3)) & (x < x.dtype.type(3)),
    "of both": lambda x, other: (x > x.dtype.type(0)) & other,
    "another": lambda x, other: other,
    "one element": lambda x, other: x == x[(0,) * x.ndim],
    "not missing": lambda x, other: ~np.isnan(x),
    "not greater": lambda x, other: ~(x > x.dtype.type(1)),
    "itself": lambda x, other: x.astype(bool),
}
#: Values that fill chunks; None leaves the elements random.
FILLS = (None, None, 0, 1, np.nan)


def outcome(function):
    """A result as a NumPy scalar, or the type of an error."""
    try:
        return np.asarray(function())
    except (ValueError, TypeError) as error:
        return type(error)


def is_same(found, expected):
    if isinstance(expected, type) or isinstance(found, type):
        return found is expected
    tolerance = {"e": 2e-2, "f": 1e-4, "F": 1e-4}.get(expected.dtype.char, 1e-7)
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    )


def unoptimized(array):
    with dask.config.set({"b2nd_dask.optimize": False}):
        return array.compute(scheduler="sync")


def agree(found, expected, lazy):
    """Results equal those of NumPy, or of dask without the optimizer."""
    assert is_same(found, expected) or is_same(found, outcome(lambda: unoptimized(lazy)))


def draw_array(rng, shape, chunks, dtype):
    """Random elements, or chunks that repeat one element, perhaps NaN."""
    values = rng.integers(0, 7, shape).astype(dtype)
    for corner in np.ndindex(*(-(-n // chunk) for n, chunk in zip(shape, chunks, strict=True))):
        box = tuple(slice(n * c, (n + 1) * c) for n, c in zip(corner, chunks, strict=True))
        fill = FILLS[rng.integers(len(FILLS))]
        if fill is not None and (fill == fill or values.dtype.kind in "fc"):
            values[box] = fill
    return values


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    data=st.data(),
    dtype=st.sampled_from(["f8", "f4", "f2", "i4", "i1", "u1", "u8", "c16", "?", ">i4"]),
    mask=st.sampled_from(sorted(MASKS)),
    has_statistics=st.booleans(),
    axis=st.sampled_from([None, None, 0]),
    seed=st.integers(0, 999),
)
@examples(20)
def test_reductions_of_chosen_elements(
    tmp_path_factory, shape, data, dtype, mask, has_statistics, axis, seed
):
    rng = np.random.default_rng(seed)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    values = draw_array(rng, shape, chunks, dtype)
    other = rng.random(shape) > 0.5
    path = tmp_path_factory.mktemp("filter") / "x.b2nd"
    b2nd_dask.to_b2nd(values, path, chunks=chunks, stats=has_statistics)
    x, lazy = b2nd_dask.from_b2nd(path), da.from_array(other, chunks=chunks)
    if axis is not None:
        # frames joined along an axis
        x = b2nd_dask.from_b2nd([path, path], axis=axis)
        values, other = np.concatenate([values] * 2, axis), np.concatenate([other] * 2, axis)
        lazy = da.from_array(other, chunks=x.chunks)
    chosen, expected = x[MASKS[mask](x, lazy)], values[MASKS[mask](values, other)]
    keywords = data.draw(st.sampled_from([{}, {"keepdims": True}, {"split_every": 2}]))
    own = {name: value for name, value in keywords.items() if name == "keepdims"}
    names = data.draw(st.lists(st.sampled_from(REDUCTIONS), min_size=1, max_size=4, unique=True))
    wanted = [getattr(da, name)(chosen, **keywords) for name in names]
    for name, reduced in zip(names, wanted, strict=True):
        found = outcome(lambda r=reduced: r.compute(scheduler="sync"))
        agree(found, outcome(lambda n=name: getattr(np, n)(expected, **own)), reduced)
    together = outcome(lambda: dask.compute(*wanted, chosen, scheduler="sync")[-1])
    if not isinstance(together, type):
        np.testing.assert_array_equal(together, expected)


@pytest.fixture
def volume(tmp_path):
    """A volume in cubes; elements of the first half are less than those that masks select."""
    array = np.random.default_rng(5).normal(10, 5, (40, 40, 40))
    array[:20] /= 100
    return written(tmp_path, array, (10, 10, 10)), array


def test_chunks_are_reduced_while_they_are_read(volume):
    path, array = volume
    x = b2nd_dask.from_b2nd(path)
    assert tasks_of(reduce_block, x[x > 12].mean()) > 0
    with chunks_read() as counts:
        found = x[x > 12].mean().compute()
    # once for mask and elements; statistics prune the first half
    assert len(counts) == 32
    np.testing.assert_allclose(found, array[array > 12].mean())


def test_excluded_chunks_are_not_read_before_a_rechunk(tmp_path):
    array = np.random.default_rng(7).random((48, 48, 48))
    array[36:] += 5
    x = b2nd_dask.from_b2nd(written(tmp_path, array, (12, 12, 12), blocks=(12, 12, 12)))
    with chunks_read() as counts:
        np.testing.assert_array_equal(x[x > 5].compute(), array[array > 5])
    assert len(counts) == 16


def test_statistics_of_part_of_a_volume(volume):
    path, array = volume
    x = b2nd_dask.from_b2nd(path)[15:35, 3:, ::2]
    array = array[15:35, 3:, ::2]
    with chunks_read() as counts:
        found = x[x > 12].sum().compute()
    assert len(counts) == 32
    np.testing.assert_allclose(found, array[array > 12].sum())


def test_other_dependents_get_all_elements(volume):
    path, array = volume
    x = b2nd_dask.from_b2nd(path)
    mask = x > 12
    wanted = [x[mask].sum(), x.max(), mask.sum(), x[mask], x.ravel()[7], x[mask].max(), x + 1]
    expected = [
        array[array > 12].sum(), array.max(), (array > 12).sum(), array[array > 12],
        array.ravel()[7], array.max(), array + 1,
    ]  # fmt: skip
    for found in (dask.compute(*wanted), dask.compute(*dask.optimize(*wanted))):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other)


def test_elements_in_the_same_blocks_of_another_array(tmp_path):
    array = np.arange(60.0).reshape(6, 10)
    path = written(tmp_path, array, (1, 10))
    x, others = b2nd_dask.from_b2nd(path, chunks=(2, 10)), b2nd_dask.from_b2nd(path)
    more = (others.rechunk((2, 10)) + 1, others.rechunk((2, 10)).cumsum(axis=1))
    found = dask.compute(x[x > 40], *more)
    for one, other in zip(found, (array[array > 40], array + 1, array.cumsum(axis=1)), strict=True):
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_elements_of_another_expression(volume, scheduler):
    path, array = volume
    x = b2nd_dask.from_b2nd(path)
    found = (x * 2 + 1)[(x > 12) & (x < 14)].std().compute(scheduler=scheduler)
    np.testing.assert_allclose(found, (array * 2 + 1)[(array > 12) & (array < 14)].std())


@pytest.mark.parametrize("axes", [1, 2])
def test_some_blocks_of_a_filter(tmp_path, axes):
    array = np.arange(400.0).reshape((20, 20) if axes == 2 else 400)
    x = b2nd_dask.from_b2nd(written(tmp_path, array, (5,) * axes if axes == 2 else (50,)))
    chosen = x[x > 100]
    for some in (chosen.blocks[:1], chosen.blocks[1:], chosen.blocks[::-1], chosen.partitions[3]):
        np.testing.assert_allclose(some.sum().compute(), unoptimized(some).sum())
    chosen.compute_chunk_sizes()
    for length in {sum(chosen.chunks[0][:n]) for n in (3, 4, 5)} | {7}:
        expected = array[array > 100][:length].sum()
        np.testing.assert_allclose(chosen[:length].sum().compute(), expected)


@pytest.mark.parametrize("sizes", [7, 30, 250])
def test_filters_above_rechunks_of_one_axis(tmp_path, sizes):
    array = np.arange(100.0)
    x = b2nd_dask.from_b2nd(written(tmp_path, array, (10,)))[::-1]
    chosen = x.rechunk(sizes)[(x > 50).rechunk(sizes)]
    np.testing.assert_array_equal(chosen.compute(), array[::-1][array[::-1] > 50])
    np.testing.assert_allclose(chosen.sum().compute(), array[array > 50].sum())


def test_no_axis(tmp_path):
    array = np.arange(100.0)
    x = b2nd_dask.from_b2nd(written(tmp_path, array, (10,)))
    np.testing.assert_array_equal(x[x > 50].sum(axis=()).compute(), array[array > 50])


@pytest.mark.parametrize("has_statistics", [True, False])
def test_moments_without_chosen_elements_in_many_blocks(tmp_path, has_statistics):
    array = np.zeros((16, 16))
    array[:, 12:] = np.arange(64).reshape(16, 4)
    b2nd_dask.to_b2nd(array, tmp_path / "x.b2nd", chunks=(4, 4), stats=has_statistics)
    x = b2nd_dask.from_b2nd(tmp_path / "x.b2nd")
    other = da.from_array(array > 0, chunks=4)
    for chosen in (x[x > 0], x[other]):
        with dask.config.set({"b2nd_dask.optimize": "elementwise reductions"}):
            found = chosen.std(split_every=2).compute()
        np.testing.assert_allclose(found, array[array > 0].std())
    assert np.isnan(outcome(x[x < 0].var(split_every=2).compute))


def test_graphs_that_are_optimized_one_by_one(volume):
    path, array = volume
    x, mine = b2nd_dask.from_b2nd(path), array * 2
    # masks that prune different chunks, and an array that one of them depends on
    both, lazy = (mine > 24) & (mine < 26), (x * 2 > 24) & (x * 2 < 26)
    wanted = [x[x > 12], x[x < 1], (x * 2)[lazy], x * 2, x * 2 > 24, x[x < 1].max(), x]
    expected = [
        array[array > 12], array[array < 1], mine[both], mine, mine > 24, array[array < 1].max(),
        array,
    ]  # fmt: skip
    for rules in (True, "masks", "masks elementwise"):
        with dask.config.set({"b2nd_dask.optimize": rules}):
            alone = [dask.optimize(each)[0] for each in wanted]
        # tasks of one key replace each other
        backwards = dask.compute(*alone[::-1])[::-1]
        for found in (dask.compute(*alone), backwards):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other)


def test_layers_that_lack_elements_have_names_of_their_own(volume):
    x = b2nd_dask.from_b2nd(volume[0])
    wanted = x[(x * 2 > 24) & (x * 2 < 26)]
    with dask.config.set({"b2nd_dask.optimize": "masks"}):
        (found,) = dask.optimize(wanted)
    shared = {str(key) for key in found.dask} & {str(key) for key in wanted.dask}
    tops = {wanted.name, next(iter(wanted.dask.dependencies[wanted.name]))}
    assert all(any(top in key for top in tops) for key in shared)
    with chunks_read() as counts:
        found.compute()
    assert len(counts) == 32


def test_positions_are_no_mask(tmp_path):
    array = np.arange(60.0).reshape(6, 10)
    x = b2nd_dask.from_b2nd(written(tmp_path, array, (2, 10)))
    flat, numbers = x.ravel(), (x % 3).astype(int).ravel()
    taken = da.map_blocks(operator.getitem, flat, numbers, dtype=float)
    assert taken.sum().compute() == unoptimized(taken).sum()


def test_other_front_end(volume):
    pytest.importorskip("dask_array")
    path, array = volume
    x = b2nd_dask.from_b2nd(path, array_type="dask-array")
    for name in ("sum", "mean", "max"):
        found = getattr(x[x > 12], name)().compute()
        np.testing.assert_allclose(found, getattr(array[array > 12], name)())


def test_filters_of_a_store(volume):
    path, array = volume
    fsspec.filesystem("memory").pipe("/filter.b2nd", path.read_bytes())
    x = b2nd_dask.from_b2nd("memory://filter.b2nd")
    chosen = x[x > 12]
    found = dask.compute(chosen, chosen.min(), x[x > 12.5].std(), x.max())
    expected = (array[array > 12], array[array > 12].min(), array[array > 12.5].std(), array.max())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize("rules", ["all", "late"])
def test_masks_of_late_results(volume, monkeypatch, rules):
    path, array = volume
    if rules == "late":
        monkeypatch.setattr(sharing, "LATE_NBYTES", 1)
        monkeypatch.setattr(sharing, "SHARE_OF_MEMORY", 0)
    x = b2nd_dask.from_b2nd(path)
    chosen, expected = x[x > x.mean()], array[array > array.mean()]
    found = dask.compute(chosen.max(), chosen.sum(), chosen)
    for one, other in zip(found, (expected.max(), expected.sum(), expected), strict=True):
        np.testing.assert_allclose(one, other)


def test_plans_of_filters(volume):
    x = b2nd_dask.from_b2nd(volume[0])
    assert b2nd_dask.plan(x[x > 12].mean()).chunks == 64
    assert b2nd_dask.plan(x[x > 1e9].sum()).chunks == 0


def test_elements_at_other_positions_are_read_too(tmp_path):
    values, numpy = np.arange(60.0).reshape(6, 10), np.full((6, 10), 0.125)
    x = b2nd_dask.from_b2nd(written(tmp_path, values, (2, 10)))
    own, expected = x + da.from_array(numpy, chunks=(2, 10)), values + numpy
    chosen = (own + own[::-1])[x > 30]
    np.testing.assert_array_equal(chosen, (expected + expected[::-1])[values > 30])
    np.testing.assert_array_equal(chosen.sum(), (expected + expected[::-1])[values > 30].sum())


def test_an_array_that_is_opaque_to_the_mask_is_read(tmp_path):
    values, tens = np.arange(60.0).reshape(6, 10), np.zeros((6, 10)) + np.arange(10) / 100
    (tmp_path / "tens").mkdir()
    x = b2nd_dask.from_b2nd(written(tmp_path, values, (2, 10)))
    long = b2nd_dask.from_b2nd(written(tmp_path / "tens", tens, (2, 10)))
    own, expected = x * 2 + 1, values * 2 + 1
    for _ in range(98):
        long, tens = long + 1, tens + 1
    chosen = da.where(x > 15, 1.0, own)[own + long > 158]
    np.testing.assert_array_equal(
        chosen, np.where(values > 15, 1.0, expected)[expected + tens > 158]
    )
