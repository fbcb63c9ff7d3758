"""`argmin` and similar functions over reads return the results of dask for arrays in memory."""

import blosc2
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd
from tests.graph.pushdown import WORK, frames, modes, outcome, small_frame

NAMES = ("argmin", "argmax", "nanargmin", "nanargmax")
SEARCHES = {name: getattr(da, name) for name in NAMES}
OWN_WORK = {
    **WORK,
    "imaginary": lambda x: x * 1j,
    "complex": lambda x: x * (1 - 2j) + np.abs(x) * 3j,
    "divided": lambda x: 1 / x,
}

# dask warns of NaNs before it raises an error, and of blocks that are all NaN
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")


def agree(search, frame, plain, *mode):
    got, want = outcome(search, frame, *mode), outcome(search, plain)
    if isinstance(want, str):
        assert got == want
    else:
        assert type(got) is type(want)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, strict=True)


@given(data=st.data())
def test_searches(fresh_path, data):
    frame, plain = data.draw(frames(fresh_path, extremes=(np.nan, np.inf, -np.inf)))
    axis = data.draw(st.none() | st.integers(-frame.ndim, frame.ndim - 1))
    search = SEARCHES[data.draw(st.sampled_from(NAMES))]
    work = OWN_WORK[data.draw(st.sampled_from(sorted(OWN_WORK)))]
    keepdims, split_every = data.draw(st.booleans()), data.draw(st.sampled_from([None, 2]))
    if data.draw(st.booleans()):
        index = tuple(
            slice(data.draw(st.integers(0, n)), None, data.draw(st.integers(1, 3)))
            for n in frame.shape
        )
        frame, plain = frame[index], plain[index]
    agree(
        lambda x: search(work(x), axis=axis, keepdims=keepdims, split_every=split_every),
        frame,
        plain,
        data.draw(modes),
    )


def test_the_first_of_equal_items_wins_wherever_its_chunk_is(tmp_path):
    array = np.zeros((40, 40))
    array[20:, :20] = 1  # a chunk that repeats an element
    array[3, 39] = 1  # in a chunk that is read after it, or before
    array[25:, 20:] = np.nan
    path = tmp_path / "x.b2nd"
    blosc2.asarray(array, urlpath=str(path), chunks=(20, 20), blocks=(10, 10))
    for chunks in (None, -1):
        frame = from_b2nd(path, chunks=chunks)
        for name in NAMES:
            for axis in (None, 0, 1):
                got = SEARCHES[name](frame, axis=axis).compute(scheduler="sync")
                np.testing.assert_array_equal(got, getattr(np, name)(array, axis=axis))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_chunks_of_zeros_behind_others(tmp_path, sign, axis):
    array = sign * np.random.default_rng(0).integers(1, 4, (20, 30, 8))
    array[5:10, 20:], array[15:, 10:20], array[10:, 20:] = 0, 0, 0
    path = tmp_path / "x.b2nd"
    blosc2.asarray(array, urlpath=str(path), chunks=(5, 10, 4), blocks=(5, 5, 2))
    for name in NAMES:
        got = SEARCHES[name](from_b2nd(path, chunks=-1), axis=axis).compute()
        np.testing.assert_array_equal(got, getattr(np, name)(array, axis=axis))


@pytest.mark.parametrize("name", ["nanargmin", "nanargmax"])
def test_nothing_but_nans_and_infinite_items(tmp_path, name):
    """NumPy returns the first NaN or infinity; dask raises an error for blocks that are all NaN."""
    infinite = np.inf if name == "nanargmin" else -np.inf
    for last in (infinite, infinite + 1j):
        array = np.full((4, 4), np.nan, np.asarray(last).dtype)
        array[:, 2:] = last
        array[3, 3] = np.nan
        path = tmp_path / "x.b2nd"
        path.unlink(missing_ok=True)
        blosc2.asarray(array, urlpath=str(path), chunks=(2, 2), blocks=(1, 2))
        for chunks in ((4, 4), (2, 2)):
            frame, plain = from_b2nd(path, chunks=chunks), da.from_array(array, chunks=chunks)
            for axis in (None, 1):
                agree(lambda x, axis=axis: SEARCHES[name](x, axis=axis), frame, plain)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_slices_of_nans_only(tmp_path, axis):
    array = np.ones((20, 30))
    array[7], array[:, 21] = np.nan, np.nan
    for values in (array, np.full((20, 30), np.nan)):
        path = small_frame(tmp_path, values)
        for chunks in ((5, 10), (20, 30)):
            frame, plain = from_b2nd(path, chunks=chunks), da.from_array(values, chunks=chunks)
            for name in NAMES:
                agree(lambda x, name=name: SEARCHES[name](x, axis=axis), frame, plain)
