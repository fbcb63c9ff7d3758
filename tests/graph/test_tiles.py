"""Elementwise work and reductions in tiles equal those of NumPy on whole arrays."""

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import from_b2nd, plan, to_b2nd
from b2nd_dask.graph.expression import tiles
from b2nd_dask.graph.expression.elementwise import UFUNCS
from b2nd_dask.graph.tasks import reduce_block
from tests.strategies import examples

FUNCTIONS = [
    lambda x: x.astype("f8"),
    lambda x: x.astype("i2"),
    lambda x: x * 2 + 1,
    lambda x: x - 1,
    lambda x: 1 - x,
    lambda x: x + x,
    lambda x: x // 3,
    lambda x: x % 7,
    lambda x: np.sqrt(abs(x)),
    lambda x: np.exp(-abs(x) / 100),
    lambda x: np.sin(x) + np.cos(x),
    lambda x: np.where(x > 3, x, 0),
    lambda x: np.where(x > 3, np.nan, x),
    lambda x: np.where(x > 3, x, -x),
    lambda x: np.where(x == 2, np.float32(0.5), x),
    lambda x: np.where(x > 3, x < 5, False),
    lambda x: np.where(x < 3, True, x != 1),
    lambda x: (x > 1) & ~(x > 5) | (x == 0),
    lambda x: np.maximum(x, 2).astype("f4") ** 2,
    lambda x: np.isnan(x * 1.5) ^ (x < 4),
    lambda x: np.clip(x, -3, 3) * np.float32(1.1),
    lambda x: np.real(x) * 2 + np.imag(x) - x,
    # a view of a result that another step could write over
    lambda x: np.real(x * 2) * (x * 2 + 1),
]
REDUCTIONS = ["sum", "prod", "mean", "std", "var", "min", "max", "any", "all"]
SKIPPING = ["nansum", "nanprod", "nanmean", "nanstd", "nanvar", "nanmin", "nanmax"]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 60)
    monkeypatch.setattr(tiles, "_RUN", 7)
    monkeypatch.setattr(tiles, "LEAST_IN_PLACE", 20)


def draw_values(data, dtypes=("i2", "u1", "i8", "f4", "f8", "?", ">f4", "c16")):
    shape = tuple(data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    dtype = np.dtype(data.draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.integers(0 if dtype.kind in "bu" else -9, 10, shape).astype(dtype)
    if dtype.kind in "fc":
        values[rng.random(shape) < data.draw(st.sampled_from([0, 0.1, 1]))] = np.nan
    return values


def stored(values, chunks=None):
    return from_b2nd(blosc2.asarray(values, chunks=chunks or values.shape).to_cframe())


def same_bits(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    # sign and payload of NaN depend on the order of operands
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@given(st.data())
@examples(60)
def test_elementwise_work_is_that_of_numpy_bit_for_bit(data):
    values = draw_values(data)
    works = data.draw(st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=3))

    def work(x):
        for one in works:
            x = one(x)
        return x

    with np.errstate(all="ignore"):
        try:
            expected = work(values)
        except TypeError:
            # NumPy lacks such a function for these dtypes
            return
        same_bits(work(stored(values)).compute(scheduler="sync"), expected)


@given(st.data())
@examples(60)
def test_broadcast_operands(data):
    values = draw_values(data, ("i2", "f4", "f8"))
    axis = data.draw(st.integers(0, values.ndim - 1))
    x = stored(values)
    keepdims = data.draw(st.booleans()) or axis > 0
    with np.errstate(all="ignore"):
        expected = (values - values.max(axis, keepdims=keepdims)) * 2 + values
        found = ((x - x.max(axis, keepdims=keepdims)) * 2 + x).compute(scheduler="sync")
        same_bits(found, expected)
        total = ((x - x.max(axis, keepdims=keepdims)) * 2).sum(axis).compute(scheduler="sync")
        wanted = ((values - values.max(axis, keepdims=keepdims)) * 2).sum(axis)
    np.testing.assert_allclose(total, wanted, rtol=1e-5)
    assert total.dtype == wanted.dtype


def test_the_result_of_transposed_elements_has_their_order_in_memory():
    values = np.arange(2 * 30 * 7, dtype="i2").reshape(2, 30, 7)
    axes, factors = (1, 2, 0), np.array([0.5, 3])
    x = da.transpose(stored(values), axes)
    found, expected = (
        np.where(array == 9, np.nan, array.astype("f8")) * factors + 1
        for array in (x, values.transpose(axes))
    )
    seen = []
    found = found.map_blocks(lambda block: seen.append(block.strides) or block, meta=expected[:0])
    same_bits(found.compute(), expected)
    assert seen == [expected.strides]
    # a computed scalar remains one, and a view is no copy
    single = da.from_array(np.array(2))
    found = da.map_blocks(np.round, x * 0.123, single, dtype="f8", meta=expected[:0])
    same_bits(found.compute(), np.round(values.transpose(axes) * 0.123, 2))
    mixed = x[::-1] * 2 + da.from_array(np.ascontiguousarray(values.transpose(axes)))
    same_bits(mixed.compute(), values.transpose(axes)[::-1] * 2 + values.transpose(axes))


@pytest.mark.parametrize("name", ["reversed", "mixed"])
def test_the_result_of_elements_in_another_order_has_the_strides_of_numpy(name):
    values = np.arange(30 * 70, dtype="f4").reshape(30, 70)

    def made(x, other):
        return x[::-1] * 2 + 1 if name == "reversed" else x.T * 2 + other

    other = np.ones((70, 30), "f4")
    expected = made(values, other)
    seen = []
    found = made(stored(values), da.from_array(other))
    found = found.map_blocks(lambda block: seen.append(block.strides) or block, meta=expected[:0])
    same_bits(found.compute(), expected)
    assert seen == [expected.strides]


def test_steps_do_not_write_into_the_result_of_another_task():
    row, rows = np.arange(90.0)[None], np.arange(270.0).reshape(3, 90)
    x, y = stored(row), da.from_array(rows, chunks=(1, 90))
    # one task reads the row for those of all rows
    same_bits((x * 2 + y).compute(scheduler="sync"), row * 2 + rows)
    found = dask.compute(x, x * 2 + 1, scheduler="sync")
    same_bits(found[0], row)
    same_bits(found[1], row * 2 + 1)


def test_elements_that_are_broadcast_to_an_array_in_memory():
    values, rows = np.arange(90), np.arange(40.0)[:, None]
    x, y = stored(values), da.from_array(rows)
    same_bits((x * 2 + y).compute(scheduler="sync"), values * 2 + rows)
    same_bits((y - (x + 1) * 3).compute(scheduler="sync"), rows - (values + 1) * 3)


@pytest.mark.parametrize("other", ["a", np.datetime64("2020-01-01")])
def test_numbers_compared_to_what_is_no_number(other):
    values = np.arange(900)
    x = stored(values)
    same_bits(((x == other) | (x > 3)).compute(scheduler="sync"), values > 3)
    same_bits(((x != other) & (x > 3)).compute(scheduler="sync"), values > 3)


def test_a_view_of_a_result_outlives_its_last_use():
    values = np.arange(900.0)
    doubled = stored(values) * 2
    found = (np.real(doubled) * (doubled + 1)).compute(scheduler="sync")
    same_bits(found, values * 2 * (values * 2 + 1))


def test_text_as_long_as_its_longest_element():
    values = np.arange(900)
    text = stored(values).astype("U5").astype("S5").astype("U3")
    assert np.array_equal(text.compute(scheduler="sync"), values.astype("U3"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(st.data())
@examples(150)
def test_reductions_of_elementwise_work(data):
    values = draw_values(data, ("i2", "i8", "f4", "f8", "c16", "f2"))
    name = data.draw(st.sampled_from(REDUCTIONS + SKIPPING))
    is_complex = values.dtype.kind == "c"
    if is_complex and name in ("min", "max", "nanmin", "nanmax", "nanstd", "nanvar"):
        return
    scale = data.draw(st.sampled_from([None, 2, 0.5]))
    axes = st.sets(st.integers(0, values.ndim - 1), min_size=1)
    axis = data.draw(st.none() | axes.map(lambda found: tuple(sorted(found))))
    x = stored(values)
    given, made = (values, x) if scale is None else (values * scale - 1, x * scale - 1)
    expected = getattr(np, name)(given, axis=axis)
    with dask.config.set({"b2nd_dask.optimize": True}):
        found = getattr(da, name)(made, axis=axis).compute(scheduler="sync")
    assert found.dtype == expected.dtype
    rtol = {2: 2e-2, 4: 1e-5}.get(given.dtype.itemsize, 1e-10)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


def test_infinite_elements_among_missing_ones():
    values = np.arange(600.0).reshape(6, 100)
    values[1, 3:7] = [np.inf, -np.inf, np.nan, np.inf]
    values[2, 50] = np.inf
    x = stored(values, (3, 100)) * 1
    with np.errstate(invalid="ignore"):
        for name in ("nansum", "nanmean", "nanmax", "sum"):
            found = getattr(da, name)(x, axis=1).compute(scheduler="sync")
            np.testing.assert_allclose(found, getattr(np, name)(values, axis=1))


def test_a_large_block_with_real_tiles(tmp_path, monkeypatch):
    monkeypatch.undo()
    packed = np.random.default_rng(3).integers(-9000, 9000, (31, 180, 360)).astype("i2")
    to_b2nd(packed, tmp_path / "x.b2nd", chunks=(31, 180, 360))
    x = from_b2nd(tmp_path / "x.b2nd")

    def decoded(x, where):
        floats = x.astype("f8")
        return where(floats == np.int16(77), np.float64(np.nan), floats) * 0.01 + 273.15

    assert packed.size > 3 * tiles.TILE
    wanted = decoded(packed, np.where)
    same_bits(decoded(x, da.where).compute(), wanted)
    for axis in (None, 0, (1, 2)):
        for name in ("nanmean", "nanstd", "nanmax", "mean"):
            found = getattr(da, name)(decoded(x, da.where), axis=axis).compute()
            np.testing.assert_allclose(found, getattr(np, name)(wanted, axis=axis), rtol=1e-12)


def test_operators_that_write_in_place_are_those_of_arrays():
    one, other = np.array([5, -7, 3]), np.array([2, 3, 1])
    for func, ufunc in UFUNCS.items():
        args = (one, other)[: ufunc.nin]
        assert np.array_equal(func(*args), ufunc(*args)), func


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
def test_a_reduction_of_several_frames_reads_them_in_its_tasks(array_type):
    pytest.importorskip("dask_array")
    rng = np.random.default_rng(5)
    values = [rng.random((40, 60)), rng.integers(0, 9, (40, 60)).astype("i2")]
    frames = [blosc2.asarray(each, chunks=(10, 20)).to_cframe() for each in values]
    x, y = (from_b2nd(each, array_type=array_type) for each in frames)
    one, other = values
    pairs = [
        ((x * y).sum(axis=0), (one * other).sum(0)),
        ((x * y[::-1] + 1).mean(), (one * other[::-1] + 1).mean()),
        (((x - x.mean(axis=0)) * (y - 4)).std(), ((one - one.mean(0)) * (other - 4)).std()),
        ((x * y[0]).max(axis=1), (one * other[0]).max(1)),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found.compute(scheduler="sync"), expected)
    assert plan((x * y).sum()).decode_nbytes == one.nbytes + other.nbytes
    if array_type == "dask":
        (done,) = dask.optimize((x * y).sum())
        functions = [task.func for task in dict(done.dask).values()]
        # no product of blocks is built
        assert functions.count(reduce_block) == 12


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
def test_decoded_elements_are_read_by_one_task(tmp_path, array_type):
    pytest.importorskip("dask_array")
    packed = np.random.default_rng(3).integers(-9, 9, (31, 40, 50)).astype("i2")
    packed[20:] = 0
    to_b2nd(packed, tmp_path / "x.b2nd", chunks=(10, 40, 20))
    expected = packed.astype("f8") * 0.5 + 3
    x = from_b2nd(tmp_path / "x.b2nd", array_type=array_type).astype("f8") * 0.5 + 3
    threads = []
    for scheduler in ("threads", "sync"):
        with Callback(pretask=lambda key, *_: threads.append(key)):
            same_bits(x.compute(scheduler=scheduler), expected)
            same_bits(x[3:17, ::2].compute(scheduler=scheduler), expected[3:17, ::2])
    assert len(threads) == 4
    # a reversed array, or one with another input, has one task per block
    same_bits(x[::-1].compute(), expected[::-1])
    same_bits((x - x.max(axis=0)).compute(), expected - expected.max(0))
    one = x[30, 39, 49].compute()
    assert (one, one.dtype) == (expected[30, 39, 49], expected.dtype)


@pytest.mark.parametrize("dtype", ["i8", "i4", "f4", "f8"])
def test_sums_in_another_dtype_leave_missing_elements_out(dtype):
    values = np.arange(90.0)
    values[7] = np.nan
    found = da.nansum(stored(values, (30,)), dtype=dtype).compute(scheduler="sync")
    assert (found, found.dtype) == (np.nansum(values), np.dtype(dtype))
