"""Results with statistics of chunks equal those of dask without them, for any elements."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b2nd_dask import to_b2nd
from tests.graph.pruning import REDUCTIONS, SEARCHES, agree, with_and_without_statistics, written

FLOATS = [0.0, -0.0, 1.5, -2.25, 100.0, np.nan, np.inf, -np.inf]
DTYPES = ["f8", ">f8", "f4", "f2", "i1", "u1", "i4", ">i4", "i8", "u8", "?"]


@st.composite
def arrays(draw):
    """Elements in constant runs: many chunks are pruned, some are constant or all NaN."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        array = rng.choice(FLOATS[: draw(st.integers(1, len(FLOATS)))], shape)
        array += np.cumsum(rng.integers(0, 2, shape[0])).reshape(-1, *(1,) * (len(shape) - 1))
    elif dtype.kind == "b":
        array = rng.integers(0, 2, shape)
    else:
        # up to the ends of the dtype, where sums wrap around
        ends = np.iinfo(dtype)
        wide = draw(st.booleans())
        low, high = (ends.min, ends.max) if wide else (0, 100)
        array = rng.integers(low, high, shape, dtype.newbyteorder("="))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    return array.astype(dtype), chunks


@settings(max_examples=8, deadline=None)
@given(arrays(), st.data())
def test_reductions_are_those_of_the_elements(tmp_path_factory, made, data):
    array, chunks = made
    path = written(tmp_path_factory.mktemp("frame"), array, chunks)
    blocks = data.draw(st.sampled_from([None, "auto", -1]))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, array.shape[0])] * 2)))
    x = da.from_b2nd(path, chunks=blocks)
    cut = slice(start, max(stop, start + 1) if start < array.shape[0] else None)
    for name, program in REDUCTIONS.items():
        for part in (slice(None), cut if array[cut].size else slice(None)):
            agree(*with_and_without_statistics(program, x[part], da), name)


@settings(max_examples=8, deadline=None)
@given(arrays(), st.data())
def test_searches_are_those_of_the_elements(tmp_path_factory, made, data):
    array, chunks = made
    path = written(tmp_path_factory.mktemp("frame"), array, chunks)
    x = da.from_b2nd(path, chunks=data.draw(st.sampled_from([None, "auto", -1])))
    some = array.reshape(-1)[:2].tolist()
    limit = data.draw(st.sampled_from([0, 1, 3.5, -2, np.inf, np.nan, *some]))
    if array.dtype.kind in "biu" and isinstance(limit, float):
        limit = 7
    for name, program in SEARCHES.items():
        if array.dtype.kind in "bu" and name in ("negative", "both", "either"):
            continue
        found, without = with_and_without_statistics(program, x, da, limit)
        assert found.dtype == without.dtype
        np.testing.assert_array_equal(found, without, err_msg=name)


#: Programs over packed numbers.
OF_PACKED = {
    **{
        name: REDUCTIONS[name]
        for name in ("max", "min", "nanmax", "nanmin", "mean", "nanmean", "nansum")
    },
    "filled": lambda x, m: m.where(m.isnan(x), 0.0, x).sum(),
    "shifted": lambda x, m: m.nanmean((x - 273.15) / 1.8),
    "most by rows": lambda x, m: m.nanmax(x, axis=-1),
    "missing": lambda x, m: m.isnan(x).sum(),
}


def unpacked(x, module, fill, scale, offset, dtype):
    """As xarray unpacks numbers by CF."""
    floats = x.astype(dtype)
    if fill is not None:
        floats = module.where(floats == fill, np.dtype(dtype).type(np.nan), floats)
    return (floats * scale).astype(dtype) + np.dtype(dtype).type(offset)


@settings(max_examples=8, deadline=None)
@given(
    arrays().filter(lambda made: made[0].dtype.kind in "iub" and made[0].dtype.itemsize < 8),
    st.data(),
)
def test_packed_numbers(tmp_path_factory, made, data):
    array, chunks = made
    path = written(tmp_path_factory.mktemp("frame"), array, chunks)
    fill = data.draw(st.sampled_from([None, 0, 50, array.reshape(-1)[0].item(), array.min()]))
    scale = data.draw(st.sampled_from([0.002, -0.5, 1, 1e-9]))
    offset = data.draw(st.sampled_from([0, 273.15, -1e6]))
    packing = fill, scale, offset, data.draw(st.sampled_from(["f4", "f8"]))
    x = da.from_b2nd(path, chunks=data.draw(st.sampled_from([None, "auto", -1])))
    steps = np.abs(array.astype("f8")).max() * abs(scale)
    for name, program in OF_PACKED.items():

        def of_packed(x, m, program=program):
            return program(unpacked(x, m, *packing), m)

        found, without = with_and_without_statistics(of_packed, x, da)
        assert found.dtype == without.dtype
        if name in ("mean", "nanmean", "nansum", "filled", "shifted"):
            # each element is rounded, and a sum is in another order
            count = array.size if name in ("nansum", "filled") else 1
            error = 20 * np.finfo(packing[3]).eps * count * (steps + abs(offset) + 273.15)
            np.testing.assert_allclose(found, without, rtol=0, atol=error, err_msg=name)
        else:
            np.testing.assert_array_equal(found, without, err_msg=name)


HOSTILE = {
    "?": [False, True],
    "i8": [-(2**63), -(2**63) + 1, -1, 0, 9, 10, 2**53 + 1, 2**63 - 1],
    "u8": [0, 9, 10, 2**53 + 1, 2**63, 2**64 - 1],
    "i2": [-(2**15), -1, 0, 9, 10, 2**15 - 1],
    "f8": [-np.inf, -1e300, -1.5, -0.0, 0.0, 9.0, 10.0, 2.0**53, 2.0**63, np.inf, np.nan],
    "f4": [-np.inf, -1.5, -0.0, 0.0, 9.0, 10.0, 3e38, np.inf, np.nan],
    "M8[s]": [-(2**63), -(2**63) + 1, -1, 0, 9, 10, 10**10, 2**63 - 1],
    "m8[s]": [-(2**63), -(2**63) + 1, -1, 0, 9, 10, 10**10, 2**63 - 1],
}
CASTS = [*HOSTILE, "M8[ns]", "m8[ms]", "U6", "U8", "c16"]
LIMITS = [
    *[10, -1, 0.5, True, np.nan, np.inf, 2**63, "10", 1j],
    *[np.timedelta64(10, "s"), np.timedelta64(9500, "ms"), np.timedelta64("NaT", "s")],
    *[np.datetime64(10, "s"), np.datetime64(10, "ns"), np.datetime64("NaT", "s")],
    *[np.int64(-(2**63)), np.uint64(10), np.float32(9)],
]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]
UNARY = [*["isnan", "isnat", "isfinite", "isinf", "absolute", "negative", "logical_not", "invert"]]


def masks_of(data):
    """Functions of an array and a module: casts, comparisons and predicates, of all kinds."""
    casts = data.draw(st.lists(st.sampled_from(CASTS), max_size=2))
    limit = data.draw(st.sampled_from(LIMITS))
    limit = limit.item() if isinstance(limit, np.generic) and data.draw(st.booleans()) else limit
    compare = data.draw(st.sampled_from(COMPARISONS))
    unary = data.draw(st.sampled_from(UNARY))
    other = data.draw(st.sampled_from(CASTS))

    def of(x, m):
        for dtype in casts:
            x = x.astype(dtype)
        compared = {
            "<": lambda: x < limit,
            "<=": lambda: x <= limit,
            ">": lambda: x > limit,
            ">=": lambda: x >= limit,
            "==": lambda: x == limit,
            "!=": lambda: x != limit,
        }[compare]
        return x, compared, lambda: getattr(np, unary)(x), lambda: x.astype(other)

    return of


PROGRAMS = {
    "elements": lambda made, x, m: x[made[1]()],
    "count": lambda made, x, m: made[1]().sum(),
    "any": lambda made, x, m: made[1]().any(),
    "asked": lambda made, x, m: x[made[2]() == made[2]()],
    "unary": lambda made, x, m: made[2]().max(),
    "where": lambda made, x, m: m.where(made[1](), x, made[0]),
    "where of casts": lambda made, x, m: m.where(x > np.array(9, x.dtype)[()], made[0], made[3]()),
    "most": lambda made, x, m: made[0].max(),
    "least": lambda made, x, m: made[0].min(),
    "isnan of both": lambda made, x, m: (~np.isnan(made[0]) & made[1]()).sum(),
}


def outcome(program):
    """What a program returns, or that it raises."""
    try:
        with np.errstate(all="ignore"):
            found = program()
            return found.compute(scheduler="sync") if hasattr(found, "compute") else found
    except Exception:  # noqa: BLE001 - which of several errors comes first is up to dask
        return "an error"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_kinds_of_dtypes(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from(list(HOSTILE)))
    values = data.draw(st.lists(st.sampled_from(HOSTILE[dtype]), min_size=1, max_size=8))
    array = np.repeat(np.array(values, "i8" if dtype[0] in "mM" else dtype), 2).astype(dtype)
    path = tmp_path_factory.mktemp("frame") / "x.b2nd"
    to_b2nd(array, path, chunks=data.draw(st.integers(1, 5)), stats=True)
    of = masks_of(data)
    x, known = da.from_b2nd(path), da.from_array(array, chunks=len(array))
    for name, program in PROGRAMS.items():
        found = outcome(lambda program=program: program(of(x, da), x, da))
        expected = outcome(lambda program=program: program(of(known, da), known, da))
        assert type(found) is type(expected), (name, found, expected)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.long
@settings(max_examples=600, derandomize=False)
@given(st.data())
def test_many_kinds_of_dtypes(tmp_path_factory, data):
    test_all_kinds_of_dtypes.hypothesis.inner_test(tmp_path_factory, data)


@pytest.mark.long
@settings(max_examples=150, derandomize=False)
@given(arrays(), st.data())
def test_many_reductions(tmp_path_factory, made, data):
    test_reductions_are_those_of_the_elements.hypothesis.inner_test(tmp_path_factory, made, data)


@pytest.mark.long
@settings(max_examples=150, derandomize=False)
@given(arrays(), st.data())
def test_many_searches(tmp_path_factory, made, data):
    test_searches_are_those_of_the_elements.hypothesis.inner_test(tmp_path_factory, made, data)
