"""Functions of users have the same results for blocks of frames and of arrays in memory.

Functions may work in place, draw random numbers, make Python objects or strings. All blocks are
writable, and a write into a block does not change another read.
"""

import tracemalloc
import uuid

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import core
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, to_b2nd
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.graph import tasks
from b2nd_dask.graph.expression.elementwise import UNKNOWN, is_elementwise
from b2nd_dask.graph.read import blocks
from b2nd_dask.graph.read.blocks import writable
from b2nd_dask.graph.tasks import index_block, reduce_block
from tests.graph.pushdown import outcome, same, small_frame, tasks_of


def unwritten(folder, dtype="f8"):
    """A frame of three chunks that were never written, and one of ones."""
    path = folder / f"{uuid.uuid4().hex}.b2nd"
    blosc2.uninit((20, 30), dtype=dtype, urlpath=str(path), chunks=(10, 15), blocks=(5, 5))
    blosc2.open(str(path), mode="a")[:10, :15] = 1
    return path


#: Calls that write into their argument.
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
            assert not fill.element(kind, 0).flags.writeable
    assert given.flags.writeable


def both_ways(path, work, **options):
    """Results of work on a frame and on the array in memory, or texts of errors."""
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
    # ufuncs that are newer than this package stay dask's
    known = {ufunc for ufunc in ours if hasattr(da, ufunc.__name__)}
    assert len(known) > 70
    assert all(is_elementwise(ufunc, args[ufunc], {}) for ufunc in known)
    assert not any(is_elementwise(ufunc, (*args[ufunc], UNKNOWN), {}) for ufunc in ours)
    for name in ("out", "where", "order", "subok", "signature"):
        assert not any(is_elementwise(ufunc, args[ufunc], {name: UNKNOWN}) for ufunc in ours)


#: Work whose results are no numbers: their sum depends on the order, or dask raises an error.
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
def test_work_whose_results_are_no_numbers(tmp_path, kind):
    array = np.arange(600).reshape(20, 30) % 7
    array[:5] = 0
    path = small_frame(tmp_path, array)
    for name in REDUCED.split():
        for axis, chunks in ((None, None), (1, (10, 30))):

            def work(x, name=name, axis=axis):
                return getattr(da, name)(NO_NUMBERS[kind](x), axis=axis)

            same(*both_ways(path, work, chunks=chunks), exact=True)


def incremented(block):
    block += 1
    return block


def cleared(block):
    """Write through a view, as masks and slices do."""
    block[..., block.shape[-1] // 2 :] = 0
    np.multiply(block, 2, out=block)
    return block


def sorted_in_place(block):
    block.sort(axis=-1)
    return block


def flat(block):
    block.flat[::2] = 3
    return block + block


FUNCTIONS = [incremented, cleared, sorted_in_place, flat]

#: Steps between a read and a function, most of which NumPy does by views. No two functions get the
#: same element: dask does not copy for each of them.
BETWEEN = {
    "nothing": lambda x: x,
    "slices": lambda x: x[1:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "one row": lambda x: x[3][None],
    "a list": lambda x: x[[1, 7, 8]],
    "transposed": lambda x: x.T,
    "new axes": lambda x: x[:, None, :],
    "reshaped": lambda x: x.reshape(-1),
    "regrouped": lambda x: x.rechunk((3, 7)),
    "split": lambda x: x.rechunk((1, 1)),
    "joined": lambda x: da.concatenate([x[:5], x[6:]]),
    "stacked": lambda x: da.stack([x[:6], x[6:]]),
    "cast in place": lambda x: x.map_blocks(lambda b: b.astype(b.dtype, copy=False)),
    "cast": lambda x: x.astype("f4", copy=False),
    "real": lambda x: x.real,
    "rounded": lambda x: x.round(),
    "squeezed": lambda x: x[:, :1].squeeze(),
    "worked on": lambda x: x * 2 + 1,
    "worked on, then sliced": lambda x: (x * 2)[4:, 1],
    "with a mean": lambda x: x - x.mean(axis=0),
    "overlapping": lambda x: da.overlap.overlap(x, depth=1, boundary="none"),
    "in place before": lambda x: x.map_blocks(incremented, dtype=x.dtype),
    "with itself": lambda x: x * x - x,
}

BEHIND = {
    "nothing": lambda x: x,
    "sum": lambda x: x.sum(),
    "columns": lambda x: x.max(axis=0),
    "index": lambda x: x[::2],
    "once more": lambda x: x.map_blocks(cleared, dtype=x.dtype),
}


@st.composite
def mostly_constant(draw, folder):
    """A frame with chunks of zeros, repeated values, data, and never written ones; its array."""
    path = folder / f"{uuid.uuid4().hex}.b2nd"
    dtype = draw(st.sampled_from(["f8", "i4", ">f4"]))
    make = draw(st.sampled_from([blosc2.zeros, blosc2.uninit]))
    make((12, 20), dtype=dtype, urlpath=str(path), chunks=(4, 5), blocks=(2, 5))
    stored, array = blosc2.open(str(path), mode="a"), np.zeros((12, 20), dtype)
    stored[:4, :10] = array[:4, :10] = 7
    if draw(st.booleans()):
        stored[4:8, 10:] = array[4:8, 10:] = np.arange(40).reshape(4, 10)
    x = from_b2nd(path, chunks=draw(st.sampled_from([None, None, (8, 10), -1, (5, 7)])))
    return x, da.from_array(array, x.chunks).map_blocks(np.copy)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@given(data=st.data())
def test_functions_in_place(tmp_path_factory, data):
    x, plain = data.draw(mostly_constant(tmp_path_factory.getbasetemp()))
    func = data.draw(st.sampled_from(FUNCTIONS))
    between = BETWEEN[data.draw(st.sampled_from(sorted(BETWEEN)))]
    behind = BEHIND[data.draw(st.sampled_from(sorted(BEHIND)))]

    def work(x, func):
        before = between(x)
        return behind(before.map_blocks(func, dtype=before.dtype, meta=before._meta))

    # in memory, a function may write into the array that its block is a view of
    want = work(plain, lambda block: func(block.copy())).compute(scheduler="sync")
    settings = data.draw(st.sampled_from([{}, {"optimization.fuse.active": False}]))
    with dask.config.set({**settings, "scheduler": "sync"}):
        got = work(x, func).compute()
        same(got, want, exact=True)
        np.testing.assert_array_equal(x.compute(), plain.compute())


@pytest.mark.parametrize("make", [blosc2.zeros, blosc2.uninit, blosc2.ones])
def test_blocks_that_are_asked_for_are_writable(tmp_path, make):
    path = tmp_path / "x.b2nd"
    make((20, 30), urlpath=str(path), chunks=(10, 15), blocks=(5, 5))
    for chunks in (None, -1):
        x = from_b2nd(path, chunks=chunks)
        kept = [x.persist(scheduler="sync"), x[1:, ::2].T.persist(scheduler="sync")]
        blocks = [
            *dask.compute(*x.to_delayed().ravel(), scheduler="sync"),
            *(k.dask[key] for k in kept for key in core.flatten(k.__dask_keys__())),
            x.blocks[0, 0].compute(scheduler="sync"),
            x.compute(scheduler="sync"),
            x[3].compute(scheduler="sync"),
            (x * 2)[3].persist(scheduler="sync").compute(),
            x.max(axis=0).persist(scheduler="sync").compute(),
        ]
        for block in blocks:
            assert block.flags.writeable


#: Work that only reads its argument.
READING = {
    "elementwise": lambda x: x * 2 + 1,
    "a slice": lambda x: (x[1:, ::2].T + 1).rechunk((7, 5)),
    "joined": lambda x: da.concatenate([x, x])[3:] - 1,
    "regrouped": lambda x: x.rechunk((7, 9)),
    "reshaped": lambda x: da.sqrt(x.reshape(-1)),
    "with a mean": lambda x: x - x.mean(axis=0),
    "rows": lambda x: x[[3, 17]] + 1,
}


@pytest.mark.parametrize("how", sorted(READING))
def test_work_that_is_known_gets_views_of_constants(tmp_path, monkeypatch, how):
    path = tmp_path / "x.b2nd"
    blosc2.uninit((20, 30), urlpath=str(path), chunks=(10, 15), blocks=(5, 5))
    array = READING[how](from_b2nd(path, uninit=3))
    copied = []

    def noted(elements):
        # outputs are results of compute(), which must be writable
        copied.append((elements == 3).any())
        return writable(elements)

    # an index returns a new array of the selected elements
    for module in (blocks,) if how == "rows" else (tasks, blocks):
        monkeypatch.setattr(module, "writable", noted)
    with dask.config.set(scheduler="sync"):
        result = array.compute()
        assert not any(copied)
        changed = array.map_blocks(incremented, dtype=array.dtype)
        np.testing.assert_array_equal(changed.compute(), result + 1)


def test_constants_are_written_without_arrays_of_them(tmp_path):
    n = 1 << 13
    blosc2.uninit((2 * n, 2 * n), urlpath=str(tmp_path / "x.b2nd"), chunks=(n, n), blocks=(n, 64))
    x = from_b2nd(tmp_path / "x.b2nd", uninit=3)
    for work in (
        *(x, x[:n], x[n:, n:].T, x * 2, x.rechunk((n, 2 * n))),
        *(da.stack([x, x])[1], da.concatenate([x, x])),
    ):
        tracemalloc.start()
        try:
            to_b2nd(work, tmp_path / "y.b2nd", chunks=(n, n), mode="w")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1 << 26  # of chunks of 512 MiB
        assert from_b2nd(tmp_path / "y.b2nd").sum().compute() == work.sum().compute()
