"""Reductions of `x[mask]` with several axes, whose elements dask flattens before it selects."""

import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask.graph.tasks import reduce_block
from tests.graph.pushing import tasks_of
from tests.graph.telling import chunks_read, written
from tests.strategies import examples

REDUCTIONS = {
    **{name: getattr(np, name) for name in ("sum", "mean", "min", "max", "any", "all")},
    **{name: getattr(np, name) for name in ("nansum", "nanmean")},
}
MASKS = {
    "some": lambda x, other: x > 3,
    "nothing": lambda x, other: x > 1e9,
    "of both": lambda x, other: (x > 0) & other,
    "another": lambda x, other: other,
    "none of a chunk": lambda x, other: x == x[0, 0],
}


def outcome(function):
    """A result as a NumPy scalar, or the type of an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(function())
    except ValueError as error:
        return type(error)


def same(found, expected):
    if isinstance(expected, type):
        assert found is expected
        return
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)),
    chunks=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)),
    dtype=st.sampled_from(["f8", "f4", "i4", "u1", "?"]),
    mask=st.sampled_from(sorted(MASKS)),
    has_statistics=st.booleans(),
    axis=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
@examples(12)
def test_reductions_of_chosen_elements(
    tmp_path_factory, shape, chunks, dtype, mask, has_statistics, axis, seed
):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 7, shape).astype(dtype)
    values[: shape[0] // 2] = 0
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
    for name, reduction in REDUCTIONS.items():
        found = outcome(lambda r=name: getattr(da, r)(chosen).compute(scheduler="sync"))
        same(found, outcome(lambda r=reduction: r(expected)))


@pytest.fixture
def volume(tmp_path):
    """A volume in cubes of which the first half is zero."""
    array = np.random.default_rng(5).normal(10, 5, (40, 40, 40))
    array[:20] = 0
    return written(tmp_path, array, (10, 10, 10)), array


def test_chunks_are_reduced_while_they_are_read(volume):
    path, array = volume
    x = b2nd_dask.from_b2nd(path)
    assert tasks_of(reduce_block, x[x > 12].mean()) > 0
    with chunks_read() as counts:
        found = x[x > 12].mean().compute()
    # once for mask and elements; statistics show that the zeros are not chosen
    assert len(counts) == 32
    np.testing.assert_allclose(found, array[array > 12].mean())


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
    wanted = [x[mask].sum(), x.max(), mask.sum(), x[mask], x.ravel()[7], x[mask].max()]
    expected = [
        array[array > 12].sum(), array.max(), (array > 12).sum(), array[array > 12], 0,
        array.max(),
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
