"""Sums, products, means and moments of narrow dtypes equal those of dask for blocks in memory.

A block of a frame is reduced chunk by chunk, but dask passes a whole block to NumPy.
"""

import operator

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import from_b2nd
from b2nd_dask.graph.tasks import reduce_block, reduce_elements
from tests.graph.pushdown import computing_with, tasks_of


@pytest.fixture
def frame_of(tmp_path):
    def write(array, chunks):
        path = tmp_path / "x.b2nd"
        path.unlink(missing_ok=True)
        blosc2.asarray(array, urlpath=str(path), chunks=chunks, blocks=chunks)
        return path

    return write


def of_both(path, work, chunks=-1):
    """Results of a frame, and of the array in memory with the same blocks."""
    x = from_b2nd(path, chunks=chunks)
    assert tasks_of(reduce_block, work(x)) > 0
    with np.errstate(all="ignore"):
        got = np.asarray(work(x).compute(scheduler="sync"))
        plain = da.from_array(blosc2.open(path)[...], chunks=x.chunks)
        want = np.asarray(work(plain).compute(scheduler="sync"))
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    return got, want


#: A value whose sum over a row of 40 overflows, while four times the value does not.
LARGE = {"f2": 2000, ">f2": 2000, "f4": 3e37, "c8": 3e37 + 3e37j}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("dtype", sorted(LARGE))
@pytest.mark.parametrize("name", ["sum", "nansum", "mean", "nanmean"])
@pytest.mark.parametrize("constant", [False, True])
def test_chunks_whose_sums_overflow_cancel_out(frame_of, dtype, name, constant):
    array = np.full((4, 40), LARGE[dtype], dtype)
    array[1::2] *= -1
    array[3, -1] = 1
    if not constant:
        array[:2, ::2] /= 2
    path = frame_of(array, (1, 40))
    exact = getattr(np, name)(array.astype("c16" if dtype == "c8" else "f8"))
    for chunks in (-1, (2, 40)):
        got, _ = of_both(path, getattr(da, name), chunks)
        if chunks == -1:
            np.testing.assert_allclose(got, exact.astype(got.dtype), rtol=1e-3)
    got, want = of_both(path, lambda x: getattr(da, name)(x, axis=0))
    np.testing.assert_allclose(got, want, rtol=2e-3)


@pytest.mark.parametrize("name", ["sum", "nansum", "mean", "var", "std", "nanvar"])
def test_half_floats_are_rounded_once_a_block(frame_of, name):
    array = np.random.default_rng(0).normal(1, 0.5, (600, 7)).astype("f2")
    path = frame_of(array, (1, 7))
    got, want = of_both(path, getattr(da, name))
    exact = getattr(np, name)(array.astype("f8"))
    np.testing.assert_allclose(got, want, rtol=2**-9)
    np.testing.assert_allclose(got, exact, rtol=2**-10)


@pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
@pytest.mark.parametrize("name", ["prod", "nanprod"])
def test_chunks_whose_products_overflow_or_vanish(frame_of, dtype, name):
    # in C order the product stays small: large and small numbers alternate
    large = {"f2": 2.0**8, "f4": 2.0**40, "c8": 2.0**40}[dtype]
    array = np.ones((8, 6), dtype)
    array[:, ::2], array[:, 1::2] = large, 1 / large
    array[0, 0] = 3
    path = frame_of(array, (8, 1))
    exact = getattr(np, name)(array.astype("c16" if dtype == "c8" else "f8"))
    got, want = of_both(path, getattr(da, name))
    np.testing.assert_allclose(got, want, rtol=1e-3)
    np.testing.assert_allclose(got, exact, rtol=1e-3)


@pytest.mark.parametrize("name", ["var", "std", "nanvar"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
def test_moments_of_chunks_with_large_sums(frame_of, name, dtype):
    array = np.random.default_rng(1).normal(0, 1, (8, 300)).astype(dtype)
    array[1::2] += 250
    array[::2] -= 250
    if dtype == "c8":
        array += 1j * (np.arange(300) % 7).astype("c8")
    path = frame_of(array, (1, 300))
    got, want = of_both(path, lambda x: getattr(da, name)(x, axis=1))
    np.testing.assert_allclose(got, want, rtol=5e-3)
    wide = array.astype("c16" if dtype == "c8" else "f8")
    got, want = of_both(path, lambda x: getattr(da, name)(x[:2] / 100))
    np.testing.assert_allclose(got, want, rtol=5e-3)
    np.testing.assert_allclose(got, getattr(np, name)(wide[:2] / 100), rtol=5e-3)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("stored", ["i4", "f2", "f8"])
@pytest.mark.parametrize("dtype", ["i1", "u8", "?", "f2", "f4"])
def test_a_dtype_is_what_the_sum_is_made_in(frame_of, stored, dtype):
    array = np.arange(240).reshape(12, 20) % 5 + 1
    array[:4] = 3
    path = frame_of(array.astype(stored), (4, 10))
    # NumPy divides in floats
    names = ["sum", "prod", "nansum"] + ["mean"] * (np.dtype(dtype).kind == "f")
    for chunks, axis in ((None, None), (-1, None), ((12, 10), 1)):
        for name in names:
            with computing_with(threads=1 / 16):  # so that blocks are merged
                got, want = of_both(
                    path, lambda x, n=name, a=axis: getattr(da, n)(x, a, dtype), chunks
                )
            if got.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "f2" else 1e-5)


def test_counts_of_half_floats_are_rounded_once(frame_of):
    array = np.ones((5000, 5), "f2")
    array[::2] = 3
    path = frame_of(array, (500, 5))
    got, want = of_both(path, operator.methodcaller("mean"))
    assert got == want == 2


@pytest.mark.parametrize("stored", ["f4", "f8", "i2", "c8"])
@pytest.mark.parametrize("name", ["sum", "nanmean", "mean", "nanstd", "var", "max", "nanprod"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_blocks_with_other_dependents(frame_of, stored, name, axis):
    rng = np.random.default_rng(3)
    array = rng.normal(1, 0.2, (4, 260, 260))
    array[:, 5:9, 7], array[:3, 2, 2] = np.nan, np.nan
    array = (100 * array if stored == "i2" else array).astype("f4" if stored == "f4" else "f8")
    array = np.nan_to_num(array, nan=-7).astype("i2") if stored == "i2" else array.astype(stored)
    x = from_b2nd(frame_of(array, (2, 260, 260)))

    def work(x):
        return x - getattr(da, name)(x, axis=axis, keepdims=True)

    assert tasks_of(reduce_elements, work(x)) == 2
    with np.errstate(all="ignore"):
        got = work(x).compute(scheduler="sync")
        want = work(da.from_array(array, chunks=x.chunks)).compute(scheduler="sync")
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-3)
