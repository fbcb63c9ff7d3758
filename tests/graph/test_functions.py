"""Functions of users do to blocks of frames what they do to blocks of arrays in memory.

Functions that act in place, draw random numbers, make Python objects or strings: whatever the data,
a block can be written to, and nothing that is written reaches another read.
"""

import uuid

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import from_b2nd
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.fill import Fill
from b2nd_dask.graph.elementwise import UNKNOWN, is_elementwise
from b2nd_dask.graph.push_index import index_block
from b2nd_dask.graph.push_reduction import reduce_block
from tests.graph.pushing import outcome, same, small_frame, tasks_of


def unwritten(folder, dtype="f8"):
    """A frame of three chunks that were never written, and one of ones."""
    path = folder / f"{uuid.uuid4().hex}.b2nd"
    blosc2.uninit((20, 30), dtype=dtype, urlpath=str(path), chunks=(10, 15), blocks=(5, 5))
    blosc2.open(str(path), mode="a")[:10, :15] = 1
    return path


#: Calls that write into the array that they are given.
IN_PLACE = {
    "copy=False": lambda x: x.map_blocks(np.nan_to_num, copy=False),
    "copy by position": lambda x: x.map_blocks(np.nan_to_num, False),
    "nan by position": lambda x: x.map_blocks(np.nan_to_num, False, 0.0),
    "out by position": lambda x: da.map_blocks(np.isnan, x, x, dtype="f8"),
    "out by keyword": lambda x: x.map_blocks(lambda b: np.isnan(b, out=b, casting="unsafe")),
    "fmin by position": lambda x: da.map_blocks(np.fmin, x, 0, x, dtype="f8"),
    "behind known work": lambda x: (x + 0).map_blocks(np.nan_to_num, False),
    "where": lambda x: x.map_blocks(lambda b: np.copyto(b, 0, where=np.isnan(b)) or b),
}


@pytest.mark.parametrize("chunks", [None, -1])
@pytest.mark.parametrize("how", sorted(IN_PLACE))
def test_in_place_functions_leave_the_fill_alone(tmp_path, how, chunks):
    x = from_b2nd(unwritten(tmp_path), uninit=np.nan, chunks=chunks)
    want = x.compute(scheduler="sync")
    assert np.isnan(want).sum() == 450
    changed = IN_PLACE[how](x)
    assert tasks_of(reduce_block, changed.sum()) == tasks_of(index_block, changed[::7, 3]) == 0
    for work in (changed.sum(), changed.max(axis=0), changed[::7, 3], changed):
        assert not np.isnan(work.compute(scheduler="sync")).any()
        np.testing.assert_array_equal(x.compute(scheduler="sync"), want)
        assert np.isnan(x.sum().compute(scheduler="sync"))


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i4", [("a", "i4"), ("b", ">f8")], "U3"])
def test_items_that_chunks_repeat_are_read_only(dtype):
    dtype = np.dtype(dtype)
    kinds = [ChunkKind.ZEROS, ChunkKind.UNINIT] + [ChunkKind.NAN] * (dtype.kind == "f")
    given = np.zeros((), dtype)
    for fill in (Fill.of(dtype, None), Fill.of(dtype, given)):
        for kind in kinds:
            assert not fill.item(kind).flags.writeable
    assert given.flags.writeable


def both_ways(path, work, **options):
    """What work gives of a frame, and of the array in memory; or texts of errors."""
    x = from_b2nd(path, **options)
    return [attempt(work, array) for array in (x, da.from_array(blosc2.open(path)[:], x.chunks))]


def attempt(work, x):
    try:
        return outcome(work, x)
    except (IndexError, OverflowError) as error:
        return str(error)


def test_ufuncs_of_users_are_called_for_each_element(tmp_path):
    path = tmp_path / "x.b2nd"
    blosc2.zeros((40, 50), urlpath=str(path), chunks=(10, 25), blocks=(5, 5))
    rng = np.random.default_rng(0)
    for noise in (
        np.frompyfunc(lambda value: value + rng.normal(), 1, 1),
        da.frompyfunc(lambda value: value + rng.normal(), 1, 1),
    ):
        for chunks in (None, -1):
            x = from_b2nd(path, chunks=chunks).map_blocks(noise, dtype=object).astype("f8")
            assert 0.9 < x.std().compute(scheduler="sync") < 1.1
            assert len(set(x[3].compute(scheduler="sync").tolist())) == 50
            assert tasks_of(reduce_block, x.sum()) == tasks_of(index_block, x[3]) == 0


def test_known_ufuncs_are_the_ones_of_numpy():
    named = vars(np).values()
    ours = {u for u in named if isinstance(u, np.ufunc) and u.nout == 1 and not u.signature}
    args = {ufunc: (UNKNOWN,) * ufunc.nin for ufunc in ours}
    # those that are newer than this package take dask's way
    known = {ufunc for ufunc in ours if hasattr(da, ufunc.__name__)}
    assert len(known) > 70
    assert all(is_elementwise(ufunc, args[ufunc], {}) for ufunc in known)
    assert not any(is_elementwise(ufunc, (*args[ufunc], UNKNOWN), {}) for ufunc in ours)
    for name in ("out", "where", "order", "subok", "signature"):
        assert not any(is_elementwise(ufunc, args[ufunc], {name: UNKNOWN}) for ufunc in ours)


#: Work whose results are no numbers: it matters in which order they are added, or dask refuses.
NO_NUMBERS = {
    "objects": lambda x: x.astype(object),
    "strings": lambda x: x.astype("U5"),
    "bytes": lambda x: x.astype("S5"),
    "strings as objects": lambda x: x.astype("U5").astype(object),
    "times": lambda x: x.astype("M8[s]"),
    "spans of time": lambda x: x.astype("m8[s]"),
    "a span of time": lambda x: x * np.timedelta64(1, "s"),
    "a large integer": lambda x: da.map_blocks(np.where, x > 3, x, 2**70, dtype=object),
    "fields": lambda x: x.astype([("a", "i4")]),
    "pairs": lambda x: x.map_blocks(lambda b: b.astype("(2,)f8").sum(axis=-1), dtype="f8"),
}
REDUCED = "sum prod min max mean std any argmax argmin nansum nanargmax"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", sorted(NO_NUMBERS))
@pytest.mark.parametrize("chunks", [None, (10, 30)])
def test_work_whose_results_are_no_numbers(tmp_path, kind, chunks):
    array = np.arange(600).reshape(20, 30) % 7
    array[:5] = 0
    path = small_frame(tmp_path, array)
    for name in REDUCED.split():
        for axis in (None, 1):

            def work(x, name=name, axis=axis):
                return getattr(da, name)(NO_NUMBERS[kind](x), axis=axis)

            same(*both_ways(path, work, chunks=chunks), exact=True)
