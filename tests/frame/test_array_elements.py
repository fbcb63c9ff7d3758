"""Frames of python-blosc2 whose elements are arrays: their axes are the last of the array."""

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import (
    UnsupportedFrameError,
    add_stats,
    compact,
    from_b2nd,
    open_b2nd,
    rechunk,
    seal,
    to_b2nd,
)

# how the elements are wide: up to 255 bytes, and more, which chunks call 1
CASES = [
    (("<f8", (10,)), (5,), (2,), (2,)),
    ((">i4", (2, 3)), (7, 6), (4, 4), (2, 3)),
    (("<f4", (100,)), (6,), (4,), (2,)),
    (("<f8", (1,)), (6,), (4,), (2,)),
]


@pytest.fixture(params=CASES, ids=[str(case[0]) for case in CASES])
def written(tmp_path, request):
    """A frame of random bytes, of a constant chunk and others; and what python-blosc2 reads."""
    element, shape, chunks, blocks = request.param
    dtype = np.dtype(element)
    path = tmp_path / "a.b2nd"
    keywords = {"chunks": chunks, "blocks": blocks, "urlpath": str(path), "mode": "w"}
    array = blosc2.zeros(shape, dtype=dtype, **keywords)
    random = np.random.default_rng(1)
    for chunk in range(1, array.schunk.nchunks):
        elements = random.integers(0, 99, array.schunk.chunksize // dtype.base.itemsize)
        array.schunk.update_data(chunk, elements.astype(dtype.base), copy=True)
    found = array[...]
    assert found.shape == shape + dtype.shape
    assert found.dtype == dtype.base
    return path, found


def test_reads(written):
    path, expected = written
    x = from_b2nd(path)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(x.compute(), expected)
    np.testing.assert_array_equal(open_b2nd(path)[1:4, ..., ::-1], expected[1:4, ..., ::-1])
    np.testing.assert_array_equal(x[2:, ..., 0].compute(), expected[2:, ..., 0])
    np.testing.assert_array_equal(x.sum(axis=0).compute(), expected.sum(axis=0))
    np.testing.assert_array_equal(from_b2nd(blosc2.open(str(path))).max(), expected.max())


def test_what_keeps_the_elements(written):
    path, expected = written
    seal(path)
    add_stats(path)
    compact(path)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], expected)
    x = from_b2nd(path)
    np.testing.assert_array_equal(x[x > 50].compute_chunk_sizes(), expected[expected > 50])
    rechunk(path, path.with_name("b.b2nd"), chunks=expected.shape, max_mem="20MB")
    np.testing.assert_array_equal(open_b2nd(path.with_name("b.b2nd"))[...], expected)


def test_changes_are_refused(written):
    path, expected = written
    before = path.read_bytes()
    with pytest.raises(UnsupportedFrameError, match=r"elements that are arrays .* mode=\"w\""):
        to_b2nd(da.ones(expected.shape, dtype=expected.dtype), path, mode="r+", append_axis=0)
    assert path.read_bytes() == before
