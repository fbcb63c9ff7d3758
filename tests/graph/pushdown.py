"""Frames and arrays with the same elements, for tests of pushdown into reads."""

import math
import sys
from contextlib import contextmanager
from functools import partial
from unittest import mock

import blosc2
import dask
import dask.array as da
import numpy as np
from hypothesis import strategies as st

from b2nd_dask import from_b2nd
from b2nd_dask.frame.read import reduce
from b2nd_dask.graph import resources as graph_resources
from b2nd_dask.graph.optimize import at_once, sharing
from b2nd_dask.graph.resources import Resources
from b2nd_dask.graph.tasks import BlockRead, index_block
from b2nd_dask.graph.write import rechunk

NAMES = (
    "sum prod min max any all mean var std nansum nanprod nanmin nanmax nanmean nanvar nanstd "
    "count_nonzero"
)
REDUCTIONS = {
    **{name: getattr(da, name) for name in NAMES.split()},
    "second moment": partial(da.moment, order=2),
    "third moment": partial(da.moment, order=3),
}
#: Reductions whose chunk steps are always recognized.
ALWAYS_PUSHED = REDUCTIONS.keys() - {"third moment"}


WORK = {
    "none": lambda x: x,
    "scalars": lambda x: x * 2 + 1,
    "used twice": lambda x: x * x - x,
    "ufuncs": lambda x: np.sqrt(np.abs(x)),
    "cast": lambda x: x.astype("c8" if x.dtype.kind == "c" else "f4"),
    "compared": lambda x: (x > 0) | (x < -3),
    "where": lambda x: da.where(x > 1, x, 0),
    "constants": lambda x: da.where(x > 1, x, da.full_like(x, 2)) + da.zeros_like(x),
    "clip": lambda x: x.clip(-1, 1),
    "other task": lambda x: x - da.nansum(da.ones(3)),
}


#: They import `available` by name: an import while it is replaced would keep the replacement.
IMPORTED_BEFORE = at_once, rechunk, sharing


@contextmanager
def computing_with(*, threads=2, held=1 << 28):
    """Optimize for `threads` threads, and for `held` bytes that may wait for a late result."""
    resources = Resources(threads, int(held / sharing.SHARE_OF_MEMORY))
    with (
        mock.patch.object(sharing, "available", return_value=resources),
        mock.patch.object(graph_resources, "available", return_value=resources) as replaced,
        mock.patch.object(sharing, "LATE_NBYTES", min(held, sharing.LATE_NBYTES)),
    ):
        yield
    modules = [each for name, each in sys.modules.items() if name.startswith("b2nd_dask.")]
    assert all(vars(each).get("available") is not replaced for each in modules)


def reducing_at_once(nbytes):
    """Reduce small chunks in groups of `nbytes`; with 0 chunk by chunk."""
    return mock.patch.object(reduce, "BOX_NBYTES", nbytes)


#: Chunk by chunk; mostly some chunks of the frames below; all elements.
nbytes_at_once = st.sampled_from([0, 2000, 1 << 20])


def tasks_of(function, array):
    """Number of tasks of an array's optimized graph that call a function."""
    return sum(calls(node, function) for node in nodes_in(_optimized_tasks(array)))


def calls(node, function):
    """Whether a task calls a function, or a partial of it."""
    func = getattr(node, "func", None)
    return function in (func, getattr(func, "func", None))


def elements_read(array):
    """Number of elements that an array's optimized graph reads as blocks, not by an index."""
    nodes = nodes_in(_optimized_tasks(array))
    indexed = [node.args[0] for node in nodes if calls(node, index_block)]
    reads = [node for node in nodes if isinstance(node, BlockRead) and node not in indexed]
    return sum(math.prod(map(len, read.axes)) for read in reads)


def _optimized_tasks(array):
    return da.Array.__dask_optimize__(array.__dask_graph__(), array.__dask_keys__()).values()


def nodes_in(tasks):
    """Tasks, tasks inside them, and their arguments."""
    nodes, found = list(tasks), []
    while nodes:
        node = nodes.pop()
        node = getattr(node, "value", node)
        found.append(node)
        for arg in getattr(node, "args", ()):
            nodes += arg.values() if isinstance(arg, dict) else [arg]
    return found


def sums_of_lists(x):
    """Sums over the last axis, by a function that takes all blocks along it in a list."""
    index = tuple(range(x.ndim))
    return da.blockwise(_sum_of_blocks, index[:-1], x, index, dtype=(x[:0] * 1.0).dtype)


def _sum_of_blocks(blocks):
    return sum(np.asarray(block * 1.0).sum(-1) for block in blocks)


def _optimized(x):
    (optimized,) = dask.optimize(x)
    return optimized


#: Functions that return an equal array, before it is computed or used by others.
MODES = {
    "as it is": lambda x: x,
    "optimized": _optimized,
    "optimized twice": lambda x: _optimized(_optimized(x)),
    "persisted": lambda x: x.persist(scheduler="sync"),
}
modes = st.sampled_from(sorted(MODES)).map(MODES.get)


def outcome(function, x, mode=MODES["as it is"]):
    """The result, or the error's text.

    Some reductions need elements, and booleans cannot be subtracted.
    """
    try:
        with np.errstate(all="ignore"):
            return mode(function(x)).compute(scheduler="sync")
    except (TypeError, ValueError) as error:
        return str(error)


def same(got, want, *, exact):
    if isinstance(want, str):
        assert got == want
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if exact or want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        rough = want.dtype.itemsize <= 4 or want.dtype == np.complex64
        np.testing.assert_allclose(
            got, want, rtol=1e-3 if rough else 1e-9, atol=1e-3 if rough else 1e-9
        )


def small_frame(folder, array):
    path = folder / "small.b2nd"
    path.unlink(missing_ok=True)
    blosc2.asarray(array, urlpath=str(path), chunks=(5, 10), blocks=(5, 5))
    return path


@st.composite
def arrays(draw, extremes=()):
    """Arrays of some constant chunks, chunks that repeat a value, and data with NaNs.

    The data are few whole numbers, zeros may be above or below all of them. Floats have boxes of
    `extremes`, too.
    """
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 23)) for _ in range(ndim))
    dtype = np.dtype(draw(st.sampled_from(["i4", "u1", "?", "f8", "f4", ">f8", "c16", "i8"])))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    low, high = draw(st.sampled_from([(-3, 4), (-3, 0), (1, 3)]))
    array = rng.integers(low, high, shape).astype(dtype)
    if dtype.kind in "fc":
        array[rng.random(shape) < draw(st.sampled_from([0, 0.2]))] = np.nan
    values = (0, 1, 2, *extremes) if dtype.kind in "fc" else (0, 1, 2)
    for value in draw(st.lists(st.sampled_from(values), max_size=3)):
        start = [draw(st.integers(0, n - 1)) for n in shape]
        array[tuple(slice(s, s + draw(st.integers(1, 15))) for s in start)] = value
    return array


@st.composite
def frames(draw, fresh_path, extremes=()):
    """A frame and an array with its elements, as dask arrays of the same chunks."""
    array, path = draw(arrays(extremes)), fresh_path()
    # at most about 64 chunks: more take longer and show no more
    most = {1: 23, 2: 8, 3: 4}[array.ndim]
    chunks = tuple(draw(st.integers(-(-n // most), n + 2)) for n in array.shape)
    blocks = tuple(draw(st.integers(1, c)) for c in chunks)
    blosc2.asarray(array, urlpath=str(path), chunks=chunks, blocks=blocks)
    wanted = draw(st.sampled_from([None, "auto", tuple(2 * c for c in chunks), 5]))
    frame = from_b2nd(path, chunks=wanted)
    return frame, da.from_array(array, chunks=frame.chunks)


def many_blocks(folder):
    """A frame of 16 x 16 chunks, as a dask array and an ndarray."""
    array = np.random.default_rng(5).integers(0, 3, (80, 80)) / 2
    array[10:30] = 0
    blosc2.asarray(array, urlpath=str(folder / "x.b2nd"), chunks=(5, 5), blocks=(5, 5))
    return from_b2nd(folder / "x.b2nd"), array
