"""Writes of frames in small chunks: several chunks share a task, with equal frames."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, open_b2nd, plan, to_b2nd
from b2nd_dask.frame.read import decode
from b2nd_dask.graph.write import chunk_sizes
from tests.strategies import examples

CHUNK = (20, 30)
VALUES = np.random.default_rng(1).integers(-9, 9, (200, 600)).astype("f8")


@pytest.fixture
def path(tmp_path):
    """A frame of 200 chunks of 4.8 kB."""
    to_b2nd(VALUES, tmp_path / "source.b2nd", chunks=CHUNK)
    return tmp_path / "source.b2nd"


def planned(array, to, **options):
    made = to_b2nd(array, to, chunks=CHUNK, compute=False, **options)
    found = plan(made)
    made.compute(scheduler="sync")
    return found


WORK = {
    "copy": lambda x: x,
    "arithmetic": lambda x: x * 2 + 1,
    "where": lambda x: np.where(x > 3, np.sqrt(abs(x)), 0),
    "mean": lambda x: x - x.mean(),
    "transpose": lambda x: x.T.astype("f4"),
    "slice": lambda x: x[20:, 30:] + 1,
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("optimize", [True, False])
def test_small_chunks_of_a_frame_share_a_task(path, tmp_path, work, optimize):
    target, expected = tmp_path / "target.b2nd", work(da.from_array(VALUES)).compute()
    with dask.config.set({"b2nd_dask.optimize": optimize, "num_workers": 2}):
        found = planned(work(from_b2nd(path)), target)
    array = open_b2nd(target)
    assert array.chunks == CHUNK
    # still enough tasks for all threads
    assert 4 * 2 <= found.writing_tasks < array.nchunks / 2
    if optimize and work is not WORK["mean"]:
        # others: the first and the last one, and those that merge records
        assert found.tasks <= found.writing_tasks + 5
    np.testing.assert_array_equal(array[:], expected)
    assert array.dtype == expected.dtype


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.map_blocks(np.sort),
        # reads in reverse keep their blocks
        lambda x: x[::-1],
        lambda x: x + da.from_array(VALUES, chunks=CHUNK),
        lambda x: da.from_array(VALUES, chunks=CHUNK).map_blocks(np.cbrt),
    ],
    ids=["function", "reversed", "array", "no frame"],
)
def test_other_blocks_stay_as_dask_made_them(path, tmp_path, work):
    made = work(from_b2nd(path))
    assert planned(made, tmp_path / "target.b2nd").writing_tasks == 200
    np.testing.assert_array_equal(open_b2nd(tmp_path / "target.b2nd")[:], made.compute())


@pytest.mark.parametrize("rechunks", [False, True])
def test_writes_that_have_a_memory_limit_do_not_take_more(path, tmp_path, rechunks):
    x = from_b2nd(path) * 2
    x = x.rechunk((200, 30)) if rechunks else x
    found = planned(x, tmp_path / "target.b2nd", max_mem="64MB")
    # with a rechunk, into an intermediate frame
    assert found.writing_tasks >= 200
    np.testing.assert_array_equal(open_b2nd(tmp_path / "target.b2nd")[:], VALUES * 2)


def test_variables_that_share_a_frame_read_it_once(path, tmp_path, monkeypatch):
    x = from_b2nd(path)
    ds = xr.Dataset({"a": (("x", "y"), x.astype("f4")), "b": (("x", "y"), x + 1)})
    # twice as many chunks of float32 as of float64
    monkeypatch.setattr(chunk_sizes, "BOX_NBYTES", 50_000)
    decoded, real = [], decode.decode_chunk
    monkeypatch.setattr(
        decode,
        "decode_chunk",
        lambda data, header, out: (decoded.append(header.nbytes), real(data, header, out))[1],
    )
    ds.b2nd.to_b2nd(tmp_path / "x.b2d", encoding={name: {"chunks": CHUNK} for name in "ab"})
    assert sum(decoded) == VALUES.nbytes
    monkeypatch.undo()
    found = xr.open_dataset(tmp_path / "x.b2d", engine="b2nd")
    np.testing.assert_array_equal(found.a, VALUES.astype("f4"))
    np.testing.assert_array_equal(found.b, VALUES + 1)


def test_a_region_and_an_append_of_small_chunks(path, tmp_path):
    target = tmp_path / "target.b2nd"
    to_b2nd(np.zeros((240, 700)), target, mode="w", chunks=CHUNK)
    region = (slice(20, 220), slice(60, 660))
    made = to_b2nd(from_b2nd(path) * 2, target, mode="r+", region=region, compute=False)
    assert plan(made).writing_tasks < 100
    made.compute(scheduler="sync")
    expected = np.zeros((240, 700))
    expected[region] = VALUES * 2
    np.testing.assert_array_equal(open_b2nd(target)[:], expected)
    to_b2nd(from_b2nd(path) + 1, path, mode="a", append_axis=0)
    np.testing.assert_array_equal(open_b2nd(path)[:], np.concatenate([VALUES, VALUES + 1]))


def test_an_empty_part_has_no_groups(path, tmp_path):
    x = from_b2nd(path, chunks=(20, 2))[:0]
    assert x.npartitions > 100
    assert to_b2nd(x, tmp_path / "target.b2nd", chunks=CHUNK).shape == (0, 600)


def test_constant_chunks_among_others_need_no_bytes(tmp_path):
    values = np.zeros((400, 600))
    values[::40] = 7
    to_b2nd(values, tmp_path / "source.b2nd", chunks=CHUNK)
    to_b2nd(from_b2nd(tmp_path / "source.b2nd") * 3, tmp_path / "target.b2nd", chunks=CHUNK)
    kinds = [open_b2nd(tmp_path / f"{name}.b2nd").chunk_kinds() for name in ("source", "target")]
    np.testing.assert_array_equal(*kinds)
    assert np.count_nonzero(kinds[0]) == 200
    np.testing.assert_array_equal(open_b2nd(tmp_path / "target.b2nd")[:], values * 3)


@st.composite
def cases(draw):
    """A shape of 0 to 3 axes, chunks of the source and of the target, and bytes of a group."""
    shape = tuple(draw(st.lists(st.integers(0, 30), max_size=3)))
    chunks = [tuple(draw(st.integers(1, n + 2)) for n in shape) for _ in range(2)]
    return shape, *chunks, draw(st.integers(1, 2000))


@given(case=cases(), resumes=st.booleans())
@examples(60)
def test_groups_of_any_chunks(tmp_path_factory, case, resumes):
    shape, chunks, wanted, nbytes = case
    folder = tmp_path_factory.mktemp("groups")
    values = np.random.default_rng(0).integers(0, 99, shape).astype("i4")
    to_b2nd(values, folder / "source.b2nd", chunks=chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_sizes, "MANY_BLOCKS", 2)
        patch.setattr(chunk_sizes, "BOX_NBYTES", nbytes)
        x = from_b2nd(folder / "source.b2nd") * 2
        to_b2nd(x, folder / "target.b2nd", chunks=wanted, resume=resumes)
    to_b2nd(values, folder / "plain.b2nd", chunks=wanted)
    array = open_b2nd(folder / "target.b2nd")
    np.testing.assert_array_equal(array[...], values * 2)
    assert array.chunks == open_b2nd(folder / "plain.b2nd").chunks
