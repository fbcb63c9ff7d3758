"""Round trips of random arrays: written by this package, read by it and by python-blosc2."""

from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from blosc2 import Filter
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from tests import strategies
from tests.vectors import raw


def dask_chunks(shape):
    """Blocks of any sizes, some of them irregular."""
    axes = [
        st.integers(1, max(n, 1)) | st.lists(st.integers(1, max(n, 1)), max_size=4).map(tuple)
        for n in shape
    ]

    def fitted(sizes, n):
        if isinstance(sizes, int) or not n:
            return min(sizes, n) if isinstance(sizes, int) and n else n
        kept, left = [], n
        for size in sizes:
            if size < left:
                kept.append(size)
                left -= size
        return (*kept, left)

    return st.tuples(*axes).map(
        lambda drawn: tuple(fitted(s, n) for s, n in zip(drawn, shape, strict=True))
    )


@pytest.mark.filterwarnings("ignore:python-blosc2 misreads slices:UserWarning")
@given(case=strategies.cases(), data=st.data())
def test_what_is_written_is_read_by_all(fresh_path, case, data):
    path: Path = fresh_path()
    x = da.from_array(case.array, chunks=data.draw(dask_chunks(case.array.shape)))
    with_back = to_b2nd(
        x,
        path,
        chunks=case.chunks or None,
        blocks=case.blocks or None,
        cparams=dict(case.cparams),
        contiguous=case.contiguous,
    )
    lossless = Filter.TRUNC_PREC not in case.cparams["filters"]
    stored = blosc2.open(str(path))
    # a 0-d array comes as a scalar of native byte order
    upstream = np.asarray(stored[...], case.array.dtype)
    assert stored.shape == case.array.shape
    assert np.dtype(stored.dtype) == case.array.dtype
    ours = open_b2nd(path)
    assert (ours.chunks, ours.blocks) == (case.chunks, case.blocks)
    assert ours.dtype == with_back.dtype == case.array.dtype
    expected = case.array if lossless else upstream
    # python-blosc2 4.14.1 decodes delta chunks with blocks past the array's edge wrongly
    if Filter.DELTA not in case.cparams["filters"]:
        assert raw(upstream) == raw(expected)
    assert raw(ours[...]) == raw(expected)
    again = from_b2nd(path).compute(scheduler="sync")
    assert raw(np.asarray(again)) == raw(expected)


def slices(shape):
    """A slice along each axis."""
    pairs = [st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(1, 3)) for n in shape]
    return st.tuples(*pairs).map(lambda drawn: tuple(slice(a, a + n, s) for a, n, s in drawn))


@given(
    shape=st.sampled_from([(300_001,), (301, 907), (61, 91, 60), (5, 40, 37, 50)]),
    dtype=st.sampled_from(["?", "i2", "f4", "c16", "M8[s]"]),
    data=st.data(),
)
def test_default_blocks_and_compression_are_read_by_all(fresh_path, shape, dtype, data):
    # most chunks are larger than a block
    chunks = data.draw(st.tuples(*(st.integers(1 + n // 3, n + 3) for n in shape)))
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    x = to_b2nd(values, path := fresh_path(), chunks=chunks)
    theirs = blosc2.open(str(path))
    assert theirs.blocks == open_b2nd(path).blocks
    assert theirs.cparams.clevel == 1
    for index in [..., data.draw(slices(shape)), data.draw(slices(shape))]:
        assert np.array_equal(theirs[index], values[index])
        assert np.array_equal(x[index].compute(scheduler="sync"), values[index])


@pytest.mark.parametrize("start", ["zeros", "full", "nans"])
@given(data=st.data())
def test_constant_chunks_stay_constant(fresh_path, start, data):
    case = data.draw(strategies.special_cases(start))
    source, copy = fresh_path(), fresh_path()
    values, _ = case.write(source)
    x = from_b2nd(source, chunks=data.draw(dask_chunks(case.shape)))
    to_b2nd(x, copy, chunks=case.chunks, blocks=case.blocks, contiguous=case.contiguous)
    values.assert_read(open_b2nd(copy)[...])
    values.assert_read(np.asarray(blosc2.open(str(copy))[...], case.dtype))
    kinds = open_b2nd(copy).chunk_kinds()
    array, sizes = values.array, case.chunks
    for at in np.ndindex(kinds.shape):
        place = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, sizes, strict=True))
        # only chunks that are zeros bit for bit are special zeros
        assert (kinds[at] == 1) == (not any(raw(np.asarray(array[place]))))
