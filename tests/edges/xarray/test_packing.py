"""Numbers are packed as xarray packs arrays of NumPy, or an error says which would be lost."""

import warnings

import dask
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from b2nd_dask import to_b2nd
from b2nd_dask.edges.xarray import packing
from b2nd_dask.edges.xarray.packing import pack
from tests.strategies import examples

SCALES = [None, 0.002, -0.5, 3.0, 1e-9, np.float32(0.1), np.float64(0.01)]
OFFSETS = [None, 273.15, -1e6, np.float32(10), np.float64(0.3)]
INTEGERS = ["i1", "u1", "i2", ">i2", "i4", "u4", "i8"]


@st.composite
def encodings(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    limits = np.iinfo(dtype)
    options = {
        "scale_factor": draw(st.sampled_from(SCALES)),
        "add_offset": draw(st.sampled_from(OFFSETS)),
        "_FillValue": draw(st.sampled_from([None, 1, limits.min, limits.max, dtype.type(7)])),
    }
    if options["_FillValue"] is not None and dtype.isnative and draw(st.booleans()):
        options["_Unsigned"] = {"i": "true", "u": "false"}[dtype.kind]
    if draw(st.booleans()):
        options["missing_value"] = options["_FillValue"]
    return {"dtype": dtype} | {key: value for key, value in options.items() if value is not None}


@st.composite
def values_of(draw, encoding):
    """Elements near what the encoding holds, and some others."""
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", ">f8", "f2"])))
    limits = np.iinfo(encoding["dtype"])
    shape = draw(st_np.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    near = st.integers(int(limits.min) - 2, int(limits.max) + 2) | st.integers(-9, 9)
    steps = draw(st_np.arrays("f8", shape, elements=near.map(float)))
    steps = steps + draw(st.sampled_from([0, 0.25, 0.5]))
    with np.errstate(all="ignore"):
        values = steps * encoding.get("scale_factor", 1) + encoding.get("add_offset", 0)
        values = np.asarray(values).astype(dtype)
    if draw(st.booleans()):
        values = np.asarray(np.where(steps % 5 == 0, dtype.type(np.nan), values)).astype(dtype)
    return values


def packed_by_xarray(values, encoding):
    dims = [f"d{axis}" for axis in range(values.ndim)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return xr.conventions.encode_cf_variable(xr.Variable(dims, values, {}, encoding))


@pytest.mark.hypothesis
@examples(300)
@given(data=st.data(), encoding=encodings(), lazy=st.booleans())
def test_numbers_are_packed_as_by_xarray_or_refused(data, encoding, lazy):
    values = data.draw(values_of(encoding))
    theirs = packed_by_xarray(values, encoding)
    variable = xr.Variable(theirs.dims, values)
    with dask.config.set(scheduler="sync"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_PIECE", 7)
        try:
            ours = pack(variable.chunk() if lazy else variable, "v", encoding, "v").compute()
        except ValueError:
            ours = None
    kept = comes_back(theirs, values, encoding)
    if ours is None:
        assert not kept.all()
        return
    assert comes_back(ours, values, encoding).all()
    # that marks it, where it is missing; xarray's marks of 64 bits are rounded
    kept &= values == values
    np.testing.assert_array_equal(ours.values[kept], theirs.values[kept].astype(theirs.dtype))
    assert ours.dtype == encoding["dtype"]
    assert ours.attrs == theirs.attrs


def comes_back(packed, values, encoding):
    """Which elements are read as they were given, but for rounding."""
    with np.errstate(all="ignore"):
        back = xr.conventions.decode_cf_variable("v", packed).values.astype("f8")
        wide = values.astype("f8")
        largest = np.maximum(abs(wide), abs(float(encoding.get("add_offset", 0))))
        near = 0.501 * abs(float(encoding.get("scale_factor", 1)))
        near += largest * np.finfo(values.dtype).eps
        return np.asarray((abs(back - wide) < near) | (np.isnan(back) & np.isnan(wide)))


@pytest.mark.parametrize(
    ("value", "encoding"),
    {
        "infinite": (np.inf, {"add_offset": 1.0}),
        "an infinite factor": (1.0, {"scale_factor": np.inf}),
        "no factor": (1.0, {"scale_factor": 0.0}),
        "wraps around": (300.0, {"_FillValue": -1}),
        "a mark that no integer is": (np.nan, {"_FillValue": 0.5}),
        "too coarse an offset": (
            1e9 + 3,
            {"add_offset": np.float32(1e9), "scale_factor": np.float32(1)},
        ),
    }.values(),
)
def test_numbers_that_would_be_read_as_others(value, encoding):
    variable = xr.Variable("x", np.array([encoding.get("add_offset", 0.0), value]))
    with pytest.raises(ValueError, match="would be read as"):
        pack(variable, "v", {"dtype": "i1"} | encoding, "v")


@pytest.mark.parametrize(
    ("value", "encoding", "remedy"),
    [
        (np.nan, {}, "a _FillValue"),
        (1.0, {"scale_factor": 2, "_FillValue": 7}, "a scale_factor of type float"),
        (-1.0, {"_FillValue": -1}, "another _FillValue"),
        (np.inf, {"_FillValue": -1}, "a dtype of floats"),
        (300.0, {"_FillValue": -1}, "a wider dtype, a larger scale_factor"),
        (300.0, {"scale_factor": 0.5, "_FillValue": -1}, "a wider dtype, a larger scale_factor"),
    ],
)
def test_errors_say_what_can_hold_it(value, encoding, remedy):
    variable = xr.Variable("x", np.array([0.0, value]))
    with pytest.raises(ValueError, match=f"[;:] {remedy}.* in encoding="):
        pack(variable, "v", {"dtype": "i1"} | encoding, "v")


def test_integers():
    # marks of missing ones are given as they are
    for values, encoding in (
        (np.array([3, -9]), {"dtype": "i1", "_FillValue": -9}),
        (np.array([30, -10], "i4"), {"dtype": "i1", "scale_factor": 10.0, "_FillValue": 7}),
        (np.array([255, 0], "u1"), {"dtype": "u2"}),
    ):
        packed = pack(xr.Variable("x", values), "v", encoding, "v")
        expected = values / encoding.get("scale_factor", 1)
        np.testing.assert_array_equal(packed.values, expected)
        assert packed.dtype == encoding["dtype"]
    for values in (np.array([128]), np.array([2**63], "u8")):
        with pytest.raises(ValueError, match="would be read as"):
            pack(xr.Variable("x", values), "v", {"dtype": "i1"}, "v")


def test_big_endian_integers_whose_mark_xarray_would_not_find():
    encoding = {"dtype": ">i2", "_Unsigned": "true", "_FillValue": 1}
    with pytest.raises(ValueError, match="byte order"):
        pack(xr.Variable("x", [np.nan]), "v", encoding, "v")


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (
            np.array([5, 6], "f4"),
            {"dtype": "i4", "scale_factor": 1.0, "add_offset": 1e8, "_FillValue": -99},
        ),
        (np.array([1, 2147483647], "i4"), {"dtype": "i1"}),
        (np.array([1, 2147483647], "i4"), {"dtype": "i1", "_FillValue": -1}),
        (np.array([-32768, 5], "i2"), {"dtype": "u1"}),
        # xarray compares floats, which do not tell both integers apart
        (np.array([2.0**53]), {"dtype": "i8", "_FillValue": 2**53 + 1}),
        (np.array([-6, 5], "i1"), {"dtype": "i1", "_FillValue": -128, "_Unsigned": "true"}),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(tmp_path, values, encoding):
    ds = xr.Dataset({"a": ("x", values)})
    with pytest.raises(ValueError, match="cannot be written as"):
        to_b2nd(ds, tmp_path / "x.b2d", encoding={"a": encoding})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lazy", [False, True])
def test_a_factor_that_is_a_whole_number(tmp_path, lazy):
    ds = xr.Dataset({"a": ("x", np.array([6, 30], "i4"))})
    packing = {"a": {"dtype": "i2", "scale_factor": 2}}
    to_b2nd(ds.chunk() if lazy else ds, tmp_path / "x.b2d", encoding=packing)
    np.testing.assert_array_equal(xr.open_dataset(tmp_path / "x.b2d", engine="b2nd").a, [6, 30])
