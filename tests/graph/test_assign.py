"""`region=` accepts the values of NumPy's assignment, in the frame's dtype and out of core."""

import tracemalloc
from collections import Counter

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, list_staging, open_b2nd, to_b2nd
from b2nd_dask.graph.write.chunk_sizes import aligned_to
from tests import strategies
from tests.limited import run_limited

VALUES = np.random.default_rng(3).normal(size=(100, 60))
REGION = (slice(5, 35), slice(10, 50))


SCALARS = [0, -1.5, np.float32(2), np.array(7), float("nan"), True]


@pytest.mark.parametrize("region", [..., slice(5, 35), REGION, (7, slice(3, 50)), (7, 8)])
@pytest.mark.parametrize(
    ("value", "contiguous"), [(value, i % 2 == 0) for i, value in enumerate(SCALARS)]
)
def test_scalars(target, value, region, contiguous):
    to_b2nd(VALUES, target, chunks=(24, 17), contiguous=contiguous)
    expected = VALUES.copy()
    expected[region] = value
    back = to_b2nd(value, target, mode="r+", region=region)
    np.testing.assert_array_equal(back.compute(), expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list_staging(target) == []


@st.composite
def assignments(draw):
    """An array, its chunks, a region, and a value that NumPy assigns to it."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    ranges = [st.lists(st.integers(0, n), min_size=2, max_size=2).map(sorted) for n in shape]
    axes = [
        st.integers(-n, n - 1) | places.map(lambda place: slice(*place))
        for n, places in zip(shape, ranges, strict=True)
    ]
    region = (*(draw(axis) for axis in axes), ...)
    filled = np.empty(shape)[region].shape
    lengths = tuple(n if draw(st.booleans()) else 1 for n in filled)
    lengths = (1,) * draw(st.integers(0, 2)) + lengths[draw(st.integers(0, len(lengths))) :]
    return shape, chunks, region, lengths


@given(case=assignments(), data=st.data())
def test_broadcasting_is_that_of_numpy(fresh_path, case, data):
    shape, chunks, region, lengths = case
    path, rng = fresh_path(), np.random.default_rng(1)
    expected, value = rng.normal(size=shape), rng.normal(size=lengths)
    to_b2nd(expected, path, chunks=chunks)
    expected[region] = value
    if value.size:
        value = da.from_array(value, chunks=data.draw(strategies.dask_chunks(lengths)))
    with dask.config.set(
        {"scheduler": "sync", "array.chunk-size": data.draw(st.integers(64, 999))}
    ):
        to_b2nd(value, path, mode="r+", region=region)
    np.testing.assert_array_equal(open_b2nd(path)[...], expected)


@pytest.mark.parametrize(
    ("shape", "region"),
    [((2,), slice(0, 3)), ((40, 1), 3), ((2, 1, 60), slice(0, 2)), ((0,), ...), ((3, 1), (3, ...))],
)
def test_what_does_not_broadcast(target, shape, region):
    to_b2nd(VALUES, target)
    with pytest.raises(ValueError, match=r"does not broadcast"):
        to_b2nd(np.zeros(shape), target, mode="r+", region=region)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", [1, 2, 255]),
        ("i2", -5),
        (">i4", [1, 2, 3]),
        ("f4", [1, 2, 3]),
        ("f4", 0.1),
        ("?", [True, False, True]),
        ("c8", 2j),
        ("M8[s]", np.datetime64("2020-01-01")),
        ("U5", "abc"),
        ("S3", [b"a", b"bc", b""]),
        ("u8", np.int64(3)),
    ],
)
def test_values_without_a_dtype_take_the_frames(target, dtype, value):
    expected = np.zeros((4, 3), dtype)
    to_b2nd(expected, target, chunks=(3, 2))
    expected[1:3] = value
    to_b2nd(value, target, mode="r+", region=slice(1, 3))
    row = value if np.ndim(value) else [value] * 3
    back = to_b2nd([row], target, mode="a", append_axis=0).compute()
    assert back.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(back[:4], expected)
    np.testing.assert_array_equal(back[4], expected[1])


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        ("u1", 256, TypeError),
        ("u1", [1, -1, 3], TypeError),
        ("i4", 1.0, TypeError),
        ("i4", float("nan"), TypeError),
        ("?", 2, TypeError),
        ("f8", 1j, TypeError),
        ("U2", "abc", TypeError),
        ("f4", 1e300, OverflowError),
        ("M8[ns]", np.datetime64("9999-01-01"), OverflowError),
        ("i4", np.array([1, 2, 3]), TypeError),
        ("f8", np.ma.masked, TypeError),
        ("f8", None, TypeError),
    ],
)
def test_values_that_a_frame_cannot_hold(target, dtype, value, error):
    before = np.zeros((4, 3), dtype)
    to_b2nd(before, target)
    with pytest.raises(error):
        to_b2nd(value, target, mode="r+", region=slice(1, 3))
    np.testing.assert_array_equal(open_b2nd(target)[...], before)


def test_a_scalar_over_whole_chunks_needs_no_task_a_block(target):
    ran = []

    class Count(Callback):
        def _pretask(self, key, dsk, state):
            ran.append(key)

    x = to_b2nd(da.ones((400, 400), chunks=20), target)
    with Count():
        x = to_b2nd(0, target, mode="r+", region=slice(0, 200))
    assert len(ran) < 10
    assert x[199:201].sum(axis=1).compute().tolist() == [0, 400]


def test_broadcasting_lists_no_chunks_of_a_large_frame(target):
    blosc2.zeros((2 * 10**7,), dtype="i1", chunks=(1,), blocks=(1,), urlpath=str(target))
    tracemalloc.start()
    try:
        written = to_b2nd(
            da.ones((1,), dtype="i1").map_blocks(np.negative),
            target,
            mode="r+",
            region=slice(10, 14),
            compute=False,
        )
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()
    assert len(written.dask) < 30


def test_broadcasting_makes_no_array_of_the_regions_size(target):
    """A row, and a column, into regions of 1.2 GB in a process that may take 500 MB."""
    to_b2nd(da.zeros((10_000, 16_000), chunks=(1000, 1000)), target)
    code = """
import dask, dask.array as da
from b2nd_dask import to_b2nd
with dask.config.set({"array.chunk-size": "16MiB", "scheduler": "threads", "num_workers": 2}):
    to_b2nd(np.arange(16_000.0), path, mode="r+", region=slice(50, 9_950))
    column = da.arange(9_900, chunks=700)[:, None]
    x = to_b2nd(column, path, mode="r+", region=(slice(50, 9_950), slice(0, 8_000)))
    answer = x[[49, 50, 9_949, 9_950]][:, [0, 7_999, 8_000]].compute().tolist()
"""
    answer = run_limited(code, megabytes=500, seconds=100, path=str(target))
    assert answer == [[0, 0, 0], [0, 0, 8000], [9899, 9899, 8000], [0, 0, 0]]


def test_a_cast_without_loss_is_read_in_the_chunks_of_the_frame(tmp_path):
    """No task passes blocks to another one: a write task reads its chunks from the other frame."""
    to_b2nd(np.arange(960, dtype="f4").reshape(24, 40), tmp_path / "f4.b2nd", chunks=(4, 40))
    to_b2nd(np.zeros((24, 40)), tmp_path / "f8.b2nd", chunks=(12, 10))
    x = from_b2nd(tmp_path / "f4.b2nd")
    written = to_b2nd(x, tmp_path / "f8.b2nd", mode="r+", region=..., compute=False)
    names = Counter(str(key).partition("(f8)")[0].strip("('") for key in written.dask.to_dict())
    assert names == {"open": 1, "write": 2, "merge": 1, "commit": 1}
    written.compute()
    np.testing.assert_array_equal(open_b2nd(tmp_path / "f8.b2nd")[...], x)


def test_edges_of_a_region_do_not_move_blocks_that_line_up():
    # each block that is shifted would be cut and copied
    x = da.zeros(50, chunks=((5, 5, 20, 15, 5),))
    assert aligned_to(x, (10,)).chunks == ((10, 20, 20),)
    # but blocks keep about their size
    assert max(aligned_to(da.zeros(1000, chunks=13), (10,)).chunks[0]) == 10
