"""What statistics of chunks tell of any elements is what dask computes without them."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.telling import REDUCTIONS, SEARCHES, agree, computed_and_without, written

FLOATS = [0.0, -0.0, 1.5, -2.25, 100.0, np.nan, np.inf, -np.inf]
DTYPES = ["f8", ">f8", "f4", "f2", "i1", "u1", "i4", ">i4", "i8", "u8", "?"]


@st.composite
def arrays(draw):
    """Elements in runs, so that many chunks are settled and some hold one value, or NaN alone."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        array = rng.choice(FLOATS[: draw(st.integers(1, len(FLOATS)))], shape)
        array += np.cumsum(rng.integers(0, 2, shape[0])).reshape(-1, *(1,) * (len(shape) - 1))
    elif dtype.kind == "b":
        array = rng.integers(0, 2, shape)
    else:
        # up to the ends of the dtype, where sums wrap around
        ends = np.iinfo(dtype)
        wide = draw(st.booleans())
        low, high = (ends.min, ends.max) if wide else (0, 100)
        array = rng.integers(low, high, shape, dtype.newbyteorder("="))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    return array.astype(dtype), chunks


@settings(max_examples=8, deadline=None)
@given(arrays(), st.data())
def test_reductions_are_those_of_the_elements(tmp_path_factory, made, data):
    array, chunks = made
    path = written(tmp_path_factory.mktemp("frame"), array, chunks)
    blocks = data.draw(st.sampled_from([None, "auto", -1]))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, array.shape[0])] * 2)))
    x = da.from_b2nd(path, chunks=blocks)
    cut = slice(start, max(stop, start + 1) if start < array.shape[0] else None)
    for name, program in REDUCTIONS.items():
        for part in (slice(None), cut if array[cut].size else slice(None)):
            agree(*computed_and_without(program, x[part], da), name)


@settings(max_examples=8, deadline=None)
@given(arrays(), st.data())
def test_searches_are_those_of_the_elements(tmp_path_factory, made, data):
    array, chunks = made
    path = written(tmp_path_factory.mktemp("frame"), array, chunks)
    x = da.from_b2nd(path, chunks=data.draw(st.sampled_from([None, "auto", -1])))
    some = array.reshape(-1)[:2].tolist()
    limit = data.draw(st.sampled_from([0, 1, 3.5, -2, np.inf, np.nan, *some]))
    if array.dtype.kind in "biu" and isinstance(limit, float):
        limit = 7
    for name, program in SEARCHES.items():
        if array.dtype.kind in "bu" and name in ("negative", "both", "either"):
            continue
        found, without = computed_and_without(program, x, da, limit)
        assert found.dtype == without.dtype
        np.testing.assert_array_equal(found, without, err_msg=name)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(arrays(), st.data())
def test_many_reductions(tmp_path_factory, made, data):
    test_reductions_are_those_of_the_elements.hypothesis.inner_test(tmp_path_factory, made, data)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(arrays(), st.data())
def test_many_searches(tmp_path_factory, made, data):
    test_searches_are_those_of_the_elements.hypothesis.inner_test(tmp_path_factory, made, data)
