"""Bad input is an error before anything is written."""

import errno

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from b2nd_dask import to_b2nd

X = np.arange(2)
BAD = {
    "slash": ({"a/b": ("x", X)}, {}, "cannot be the name of a file"),
    "dot": ({".a": ("x", X)}, {}, "cannot be the name of a file"),
    "empty dim": ({"a": ("", X)}, {}, "names have 1 to"),
    "pandas": ({"a": ("x", pd.array([1, None], "Int64"))}, {}, "a dtype of pandas"),
    "zone": ({"a": ("x", pd.date_range("2001", periods=2, tz="UTC"))}, {}, "dtype of pandas"),
    "scale": ({"a": ("x", X, {"scale_factor": "q"})}, {}, "cannot unpack it by its attributes"),
    "offset": ({"a": ("x", X, {"add_offset": "q"})}, {}, "cannot unpack it by its attributes"),
    "bytes and text": ({"a": ("x", np.array([b"a", "b"], object))}, {}, "would come back as b'b'"),
    "NUL": ({"a": ("x", np.array(["a\0", "b"], object))}, {}, "would come back as 'a'"),
    "suffix": ({"a.b2nd": ("x", X)}, {}, "something else in a store"),
    "manifest": ({"dataset.json": ("x", X)}, {}, "something else in a store"),
    "case": ({"a": ("x", X), "A": ("x", X)}, {}, "differ only in case"),
    "number": ({1: ("x", X)}, {}, "names in a frame are text"),
    "objects": ({"a": ("x", np.array([1, {}], object))}, {}, "Python objects"),
    "attribute": ({"a": ("x", X, {"o": object()})}, {}, "attribute 'o' of a"),
    "encoding": ({"a": ("x", X)}, {"encoding": {"a": {"zlib": 1}}}, "unknown: zlib"),
    "narrow": ({"a": ("x", ["abc", "d"])}, {"encoding": {"a": {"dtype": "U2"}}}, "read as ab"),
    "narrow objects": (
        {"a": ("x", np.array(["abc", "d"], object))},
        {"encoding": {"a": {"dtype": "U2"}}},
        "'abc' would come back as 'ab'.* another dtype",
    ),
    "text as bytes": (
        {"a": ("x", np.array(["abc", "d"], object))},
        {"encoding": {"a": {"dtype": "S3"}}},
        "its elements are text, not .*S3",
    ),
    "tuple": ({"a": ("x", X)}, {"blocks": (2,)}, "blocks=.* name the dims, as in blocks="),
    "dim": ({"a": ("x", X)}, {"chunks": {"tiem": 1}}, "no dim 'tiem'"),
}


@pytest.mark.parametrize(("variables", "options", "match"), BAD.values(), ids=BAD)
def test_dataset(tmp_path, variables, options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        xr.Dataset(variables).b2nd.to_b2nd(tmp_path / "d.b2d", **options)
    assert not list(tmp_path.iterdir())


def test_names_of_targets(tmp_path):
    ds = xr.Dataset({"a": ("x", X)}, attrs={3: 4})
    with pytest.raises(TypeError, match="attribute 3"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2d")
    with pytest.raises(ValueError, match="one array"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2nd")
    with pytest.raises(ValueError, match="to_dataset"):
        ds.a.b2nd.to_b2nd(tmp_path / "d.b2d")
    with pytest.raises(ValueError, match="local path"):
        ds.b2nd.to_b2nd("s3://bucket/d.b2d")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["t.b2nd", "dataset.json", "embed.b2e", "chunks.b2frame"])
def test_names_of_groups(tmp_path, name):
    tree = xr.DataTree.from_dict(
        {"/": xr.Dataset({"t": ("x", X)}), f"/{name}": xr.Dataset({"u": 1})}
    )
    with pytest.raises(ValueError, match="something else in a store"):
        tree.b2nd.to_b2nd(tmp_path / "d.b2d")
    assert not list(tmp_path.iterdir())


def test_encodings_of_what_there_is_not(tmp_path):
    ds = xr.Dataset({"a": ("x", X)})
    tree = xr.DataTree.from_dict({"/g": ds})
    with pytest.raises(KeyError, match="this variable does not exist"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2d", encoding={"b": {"dtype": "f4"}})
    with pytest.raises(ValueError, match="groups or variables: 'b'"):
        tree.b2nd.to_b2nd(tmp_path / "d.b2d", encoding={"b": {"dtype": "f4"}})
    with pytest.raises(NotImplementedError, match="MultiIndex"):
        ds.assign_coords(x=[1, 2]).stack(y=["x"]).b2nd.to_b2nd(tmp_path / "d.b2d")
    assert not list(tmp_path.iterdir())


DAYS = np.array(["2001-01-01", "2001-01-02"], "M8[ns]")
SINCE = {"units": "days since 2001-01-01", "dtype": "i2"}
PACKED = {
    "between days": (DAYS, DAYS + np.timedelta64(60, "h"), SINCE),
    "far off": (DAYS, DAYS + np.timedelta64(70_000, "D"), SINCE),
    "NaT": (DAYS, np.array(["2001-01-03", "NaT"], "M8[ns]"), SINCE),
    "too large": ([1.0, 2.0], [3.0, 400.0], {"scale_factor": 0.01, "dtype": "i2"}),
    "NaN": ([1.0, 2.0], [3.0, np.nan], {"scale_factor": 0.01, "dtype": "i2"}),
    "what marks missing": ([1.0], [2.0], {"dtype": "i2", "_FillValue": np.int16(2)}),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("there", "new", "encoding"), PACKED.values(), ids=PACKED)
def test_values_that_packing_would_change(tmp_path, there, new, encoding, lazy):
    path = tmp_path / "d.b2d"
    ds, more = (xr.Dataset({"v": ("x", values)}) for values in (there, new))
    ds.b2nd.to_b2nd(path, encoding={"v": encoding})
    more = more.chunk() if lazy else more
    refused = pytest.raises(ValueError, match=r"the variable 'v'|serialized faithfully")
    with refused:
        more.b2nd.to_b2nd(path, mode="a", append_dim="x")
    with refused:
        more.b2nd.to_b2nd(tmp_path / "e.b2d", encoding={"v": encoding})
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), ds)
    assert [each.name for each in tmp_path.iterdir()] == ["d.b2d"]


def test_times_between_the_units(tmp_path):
    ds = xr.Dataset({"v": ("x", DAYS + np.timedelta64(60, "h"))})
    with pytest.raises(ValueError, match=r"'v': Times .* 'days since 2001-01-01'; finer units"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2d", encoding={"v": SINCE})


def test_an_array_with_an_empty_name_replaces_nothing(tmp_path):
    path = tmp_path / "a.b2nd"
    array = xr.DataArray(np.arange(3.0), dims="x", name="good")
    array.b2nd.to_b2nd(path)
    with pytest.raises(ValueError, match="names have 1 to"):
        array.rename("").b2nd.to_b2nd(path, mode="w")
    xr.testing.assert_identical(xr.open_dataarray(path, engine="b2nd").load(), array)


def test_bytes_that_could_not_be_read_again_as_times(tmp_path):
    ds = xr.Dataset({"v": ("x", np.array([b"ab", b"c"]), {"units": "K"})})
    with pytest.raises(ValueError, match=r"'v' cannot be written as .*, which could not be read"):
        to_b2nd(ds, tmp_path / "d.b2d", encoding={"v": {"units": "hours"}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lazy", [False, True])
def test_characters_with_a_mark_for_missing_ones(tmp_path, lazy):
    """The check of packed elements does not join them to text."""
    ds = xr.Dataset({"c": (("x", "n"), np.array([[b"a", b"b"], [b"c", b"d"]]))})
    how = {"encoding": {"c": {"_FillValue": b"-"}}}
    written = to_b2nd(ds.chunk(x=1) if lazy else ds, tmp_path / "c.b2d", **how)
    xr.testing.assert_equal(written.compute(), ds)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"append_axis": 7}, ValueError, "append_axis=7: the array in the frame has 1 axes"),
        ({"append_axis": "x"}, TypeError, "give the number of an axis"),
        ({"append_axis": 0, "append_dim": "x"}, ValueError, "give one of region=, append_dim="),
        ({"region": {"x": slice(0, 3)}, "append_dim": "x"}, ValueError, "give one of region="),
    ],
)
@pytest.mark.parametrize("name", ["old.b2nd", "new.b2nd"])
def test_places_of_an_array_that_contradict(tmp_path, options, error, match, name):
    array = xr.DataArray(np.arange(3.0), dims="x", name="v")
    array.b2nd.to_b2nd(tmp_path / "old.b2nd")
    mode = "r+" if "region" in options else "a"
    with pytest.raises(error, match=match):
        (array + 1).b2nd.to_b2nd(tmp_path / name, mode=mode, **options)
    assert [each.name for each in tmp_path.iterdir()] == ["old.b2nd"]
    found = xr.open_dataarray(tmp_path / "old.b2nd", engine="b2nd")
    xr.testing.assert_identical(found.load(), array)


@pytest.mark.parametrize("name", ["old.b2d", "new.b2d", "old.b2nd", "new.b2nd"])
def test_dims_that_cannot_grow(tmp_path, name):
    array = xr.DataArray(np.arange(3.0), dims="x", name="v")
    ds = array.to_dataset()
    array.b2nd.to_b2nd(tmp_path / "old.b2nd")
    ds.b2nd.to_b2nd(tmp_path / "old.b2d")
    given = ds if name.endswith(".b2d") else array
    with pytest.raises(ValueError, match="tiem"):
        given.b2nd.to_b2nd(tmp_path / name, mode="a", append_dim="tiem")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.b2d", "old.b2nd"]
    if name.startswith("old"):
        with pytest.raises(ValueError, match=r"append_dim='tiem': the existing dims are \['x'\]"):
            given.rename(x="tiem").b2nd.to_b2nd(tmp_path / name, mode="a", append_dim="tiem")


def test_groups_in_too_many_others(tmp_path):
    """They would not open again."""
    tree = xr.DataTree.from_dict({"/".join("g" * 33): xr.Dataset({"a": 1})})
    with pytest.raises(ValueError, match="nested in more than 32 others"):
        to_b2nd(tree, tmp_path / "d.b2d")
    assert not list(tmp_path.iterdir())


def test_appends_that_do_not_fit(tmp_path):
    path, ds = tmp_path / "d.b2d", xr.Dataset({"n": ("x", ["a", "b"])}, {"x": [1, 1]})
    ds.b2nd.to_b2nd(path)
    with pytest.raises(TypeError, match=r"'n' has elements of <U6, which the existing dtype"):
        ds.assign(n=("x", ["longer", "a"])).b2nd.to_b2nd(path, mode="a", append_dim="x")
    with pytest.raises(ValueError, match="existing labels of 'x' repeat"):
        ds.b2nd.to_b2nd(path, mode="r+", region="auto")
    with pytest.raises(ValueError, match="compute=: not for a Dataset"):
        ds.b2nd.to_b2nd(path, mode="w", compute=False)
    with pytest.raises(ValueError, match=r"a Dataset takes 'w-', 'w', 'a', 'r\+'"):
        ds.b2nd.to_b2nd(path, mode="q")
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), ds)


class ConnectorError(OSError):
    """As aiohttp's, which is made in another way than those of the system."""

    def __init__(self, key, error):
        super().__init__(error.errno, error.strerror)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "reset by peer"),
        ConnectorError("key", OSError(errno.ECONNREFUSED, "refused")),
        OSError(errno.EIO, "of a descriptor", 5),
        OSError("without a number"),
    ],
    ids=["reset", "connector", "descriptor", "text"],
)
def test_errors_of_the_data_stay_what_they_are(tmp_path, error):
    def fail(block):
        raise error

    x = da.map_blocks(fail, da.zeros((4,), chunks=2), dtype="f8")
    with pytest.raises(type(error)) as raised:
        to_b2nd(xr.Dataset({"a": ("x", x)}), tmp_path / "d.b2d")
    assert "while writing" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
