"""Random expressions over frames give what dask gives for the same arrays in memory.

Whatever is pushed, inlined or merged: dtypes, shapes and values are those of the plain way, also
where several results are asked for together and share their parts.
"""

import uuid

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from b2nd_dask import from_b2nd
from tests.graph.pushing import REDUCTIONS, WORK, computing_with, modes, same, sums_of_lists

#: More elements are not needed to meet every combination.
MOST_ITEMS = 20_000


def indices(draw, shape):
    """An index of each kind that dask has; at most one list, which goes with no new axes."""
    parts = []
    rare = draw(st.sampled_from(["list", "mask", "new"]))
    for n in shape:
        kind = draw(st.sampled_from(["all", "slice", "slice", "one", rare])) if n else "all"
        if kind in ("list", "mask") and any(isinstance(p, list | np.ndarray) for p in parts):
            kind = "all"
        if kind == "slice":
            step = draw(st.sampled_from([None, 2, 3, -1, -2]))
            parts.append(slice(draw(st.integers(-n, n)), draw(st.integers(-n, n)), step))
        elif kind == "one":
            parts.append(draw(st.integers(-n, n - 1)))
        elif kind == "list":
            parts.append(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6)))
        elif kind == "mask":
            parts.append(np.arange(n) % draw(st.integers(1, 4)) == 0)
        else:
            parts += [None] * (kind == "new" and len(shape) < 4) + [slice(None)]
    return tuple(parts)


def chosen_axes(draw, ndim):
    some = st.lists(st.integers(0, ndim - 1), min_size=1, max_size=ndim, unique=True)
    return draw(st.none() | st.integers(-ndim, ndim - 1) | some.map(tuple))


def indexed(draw, source):
    index = indices(draw, source.shape)
    return lambda a: a[index]


def worked(draw, source):
    return WORK[draw(st.sampled_from(sorted(WORK)))]


def reduced(draw, source):
    function = REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))]
    axis, keepdims = chosen_axes(draw, source.ndim), draw(st.booleans())
    every = draw(st.sampled_from([None, 2, 3, 16]))
    return lambda a: function(a, axis=axis, keepdims=keepdims, split_every=every)


def searched(draw, source):
    function = draw(st.sampled_from([da.argmin, da.argmax]))
    axis, every = draw(st.integers(0, source.ndim - 1)), draw(st.sampled_from([None, 2]))
    return lambda a: function(a, axis=axis, split_every=every)


def moved(draw, source):
    axes = draw(st.permutations(range(source.ndim)))
    return lambda a: a.transpose(axes)


def joined(draw, source):
    """With parts of itself: neighbours in a row, or any, along any axis."""
    axis, along = (draw(st.integers(0, source.ndim - 1)) for _ in range(2))
    n, width = source.shape[axis], draw(st.just(source.chunks[axis][0] or 1) | st.integers(1, 6))
    in_a_row = list(range(0, max(n - width, 0) + 1, width))[:8]
    anywhere = st.lists(st.integers(0, max(n - width, 0)), min_size=1, max_size=4)
    places = draw(st.just(in_a_row) | anywhere)
    join = draw(st.sampled_from([da.concatenate, da.concatenate, da.stack]))
    cut = (slice(None),) * axis
    return lambda a: join([a[(*cut, slice(p, p + width))] for p in places], axis=along)


def regrouped(draw, source):
    chunks = tuple(draw(st.integers(1, max(n, 1))) for n in source.shape)
    return lambda a: a.rechunk(chunks)


def listed(draw, source):
    return sums_of_lists


def centred(draw, source):
    axis = chosen_axes(draw, source.ndim)
    return lambda a: a * 1.0 - a.mean(axis=axis, keepdims=True)


@st.composite
def sources(draw, path):
    """A frame of many small blocks, and the same in memory."""
    shape = tuple(draw(st.lists(st.integers(4, 16), min_size=1, max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(["i4", "u1", "?", "f8", "f4", ">f8", "c16"])))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    array = rng.integers(-3, 4, shape).astype(dtype)
    array[: shape[0] // 2] = draw(st.sampled_from([0, 1])) if draw(st.booleans()) else array[0]
    chunks = tuple(draw(st.integers(2, 5)) for _ in shape)
    blosc2.asarray(array, urlpath=str(path), chunks=chunks, blocks=chunks)
    frame = from_b2nd(path, chunks=draw(st.sampled_from([None, None, 5])))
    return frame, da.from_array(array, chunks=frame.chunks)


#: In this order, each perhaps.
STAGES = (
    (indexed, moved, regrouped),
    (worked,),
    (joined,),
    (worked, indexed),
    (reduced, reduced, reduced, searched, listed, centred),
    (worked, indexed),
)


def used_on(ours, plain, mode):
    try:
        return mode(ours)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            computed([plain])
        reject()


@st.composite
def results(draw, ours, plain):
    """What some of the stages make of a source, and of the same in memory."""
    made = [(ours, plain)]
    # once perhaps it is optimized or computed, and used on
    turn, mode = draw(st.integers(0, len(STAGES))), draw(modes)
    for number, stage in enumerate(STAGES):
        source = plain
        if source.ndim == 0 or source.size > MOST_ITEMS or draw(st.integers(0, 3)) == 3:
            continue
        step = draw(st.sampled_from(stage))(draw, source)
        try:
            with np.errstate(all="ignore"):
                plain = step(source)
        except (TypeError, ValueError, IndexError, NotImplementedError):
            continue  # dask refuses, for instance to subtract booleans
        if np.isnan(plain.shape).any():
            plain = source
            continue
        ours = step(ours)
        if number == turn:
            ours = used_on(ours, plain, mode)
        made.append((ours, plain))
    return made


modes_of_several = st.sampled_from(
    [
        lambda arrays: arrays,
        lambda arrays: dask.optimize(*arrays),
        lambda arrays: dask.optimize(*dask.optimize(*arrays)),
        lambda arrays: dask.persist(*arrays, scheduler="sync"),
    ]
)


def computed(arrays):
    with np.errstate(all="ignore"):
        return dask.compute(*arrays, scheduler="sync")


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::dask.array.PerformanceWarning")
@given(data=st.data())
def test_random_expressions(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / f"{uuid.uuid4().hex}.b2nd"
    source = data.draw(sources(path))
    held = data.draw(st.sampled_from([100, 1 << 28]))
    # so that blocks are merged, however small the array
    with computing_with(threads=1 / 16, held=held), np.errstate(all="ignore"):
        made = data.draw(results(*source))
        wanted = [made[-1]]
        if data.draw(st.booleans()):
            wanted += data.draw(results(*data.draw(st.sampled_from(made))))[-1:]
            wanted += data.draw(st.lists(st.sampled_from(made), max_size=1))
        ours, plain = zip(*wanted, strict=True)
        try:
            want = computed(plain)
        except (AttributeError, IndexError, TypeError, ValueError):
            reject()  # some need elements
        got = computed(data.draw(modes_of_several)(ours))
    for one, other in zip(got, want, strict=True):
        same(one, other, exact=False)
