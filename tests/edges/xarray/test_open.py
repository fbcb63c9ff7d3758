"""What is opened, and what errors say."""

import json
import subprocess
import sys

import blosc2
import numpy as np
import pytest
import xarray as xr

import b2nd_dask
from b2nd_dask.edges.xarray.backend import B2ndBackend
from tests.edges.xarray.labelled import labels, weather, write_dataset, write_frame

ARRAY = np.arange(24.0).reshape(4, 6)


def cframe(array, dims, name):
    frame = blosc2.asarray(array)
    for entry, value in labels(dims, name, coord=True).items():
        frame.vlmeta[entry] = value
    return frame.to_cframe()


@pytest.fixture
def path(tmp_path):
    """A frame with coordinates in itself."""
    coords = {
        "time": cframe(np.array(["2001-01-01", "2001-01-02"] * 2, "M8[D]"), ["time"], "time"),
        "run": cframe(np.array(7), [], "run"),
    }
    return write_frame(
        tmp_path / "t.b2nd",
        ARRAY,
        ("time", "lat"),
        "temperature",
        attrs={"units": "K", "levels": [1, 2]},
        vlmeta={"coords": coords, "station": "X", "long_name": "T", "cratio": 3.0},
        chunks=(2, 6),
    )


EXPECTED = xr.Dataset(
    {
        "temperature": (
            ("time", "lat"),
            ARRAY,
            {"units": "K", "levels": [1, 2], "station": "X", "long_name": "T"},
        )
    },
    {"time": np.array(["2001-01-01", "2001-01-02"] * 2, "M8[s]"), "run": 7},
)

SOURCES = {
    "path": lambda path: path,
    "text": str,
    "bytes": lambda path: b2nd_dask.open_b2nd(path.read_bytes()),
    "Frame": b2nd_dask.open_b2nd,
    "NDArray": lambda path: blosc2.open(str(path), mode="r"),
    "list": lambda path: [path],
    "file URL": lambda path: f"file://{path}",
}


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("source", SOURCES)
def test_one_frame(path, source, chunks):
    ds = xr.open_dataset(SOURCES[source](path), engine="b2nd", chunks=chunks)
    xr.testing.assert_identical(ds.compute(), EXPECTED)
    assert (ds.temperature.chunks is None) is (chunks is None)


def test_encoding(path):
    encoding = xr.open_dataset(path).temperature.encoding
    assert encoding["chunks"] == (2, 6)
    assert encoding["preferred_chunks"] == {"time": 2, "lat": 6}
    assert encoding["source"] == str(path)
    assert encoding["codec"] == "zstd"
    assert len(encoding["blocks"]) == 2


def test_arrays_and_names(path, tmp_path):
    array = xr.open_dataarray(path, engine="b2nd")
    xr.testing.assert_identical(array.load(), EXPECTED.temperature)
    write_frame(tmp_path / "nameless.b2nd", ARRAY, ("a", "b"), vlmeta={"var": None})
    assert xr.open_dataarray(tmp_path / "nameless.b2nd").name is None
    write_frame(tmp_path / "plain.b2nd", ARRAY, vlmeta={"who": "me", "n": [1, 2]})
    plain = xr.open_dataarray(tmp_path / "plain.b2nd").load()
    expected = xr.DataArray(ARRAY, name="plain", attrs={"who": "me", "n": [1, 2]})
    xr.testing.assert_identical(plain, expected)


def test_sparse_frames_and_caterva(tmp_path):
    sparse = write_frame(tmp_path / "s.b2nd", ARRAY, ("a", "b"), "s", contiguous=False)
    assert sparse.is_dir()
    xr.testing.assert_identical(
        xr.open_dataset(sparse).load(), xr.Dataset({"s": (("a", "b"), ARRAY)})
    )
    folder = tmp_path / "set"
    folder.mkdir()
    write_frame(folder / "s.b2nd", ARRAY, ("a", "b"), "s", contiguous=False)
    write_frame(folder / "u.b2nd", ARRAY[0], ("b",), "u")
    assert set(xr.open_dataset(folder, engine="b2nd").data_vars) == {"s", "u"}


def test_directory_without_a_manifest(tmp_path):
    write_frame(tmp_path / "x.b2nd", np.arange(6), ("x",))
    write_frame(tmp_path / "t.b2nd", ARRAY, ("time", "x"))
    write_frame(tmp_path / "_coord_lat.b2nd", np.arange(4.0), ("time",), "lat", coord=True)
    (tmp_path / "notes.txt").write_text("other files are left alone")
    ds = xr.open_dataset(tmp_path, engine="b2nd").load()
    expected = xr.Dataset(
        {"t": (("time", "x"), ARRAY)}, {"x": np.arange(6), "lat": ("time", np.arange(4.0))}
    )
    xr.testing.assert_identical(ds, expected)


def test_lists(tmp_path):
    coords = {"x": cframe(np.arange(6), ["x"], "x")}
    for name in "tu":
        write_frame(tmp_path / f"{name}.b2nd", ARRAY, ("y", "x"), vlmeta={"coords": coords})
    paths = [tmp_path / "t.b2nd", tmp_path / "u.b2nd"]
    ds = xr.open_dataset(paths, engine="b2nd", chunks={})
    assert set(ds.data_vars) == {"t", "u"}
    assert set(ds.coords) == {"x"}
    with pytest.raises(ValueError, match=r"two variables are called 't': .*t\.b2nd"):
        xr.open_dataset([paths[0], paths[0]], engine="b2nd")
    (tmp_path / "u.b2nd").write_bytes(b"damaged")
    some = xr.open_dataset([tmp_path], engine="b2nd", drop_variables=["u"])
    assert set(some.data_vars) == {"t"}


def test_mfdataset(tmp_path):
    ds = weather(20)
    for part in (0, 1):
        write_dataset(ds.isel(time=slice(10 * part, 10 * part + 10)), tmp_path / f"part{part}")
    paths = [tmp_path / "part0", tmp_path / "part1"]
    one_by_one = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    both = xr.open_mfdataset(paths, engine="b2nd", **one_by_one)
    assert both.t.chunks[0] == (10, 10)
    xr.testing.assert_allclose(both.compute(), ds)


def test_trees(tmp_path):
    write_frame(tmp_path / "top.b2nd", ARRAY, ("a", "b"), "top")
    for group in ("one", "one/deep", "two"):
        (tmp_path / group).mkdir()
        write_frame(tmp_path / group / "x.b2nd", ARRAY, ("c", "d"), "x")
    tree = xr.open_datatree(tmp_path, engine="b2nd", chunks={})
    assert set(tree.groups) == {"/", "/one", "/one/deep", "/two"}
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path, engine="b2nd", group="one/deep").load(),
        tree["one/deep"].to_dataset().compute(),
    )
    assert set(xr.open_groups(tmp_path, engine="b2nd")) == set(tree.groups)
    with pytest.raises(FileNotFoundError, match="no group 'three' here; groups: one, two"):
        xr.open_dataset(tmp_path, engine="b2nd", group="three")
    with pytest.raises(FileNotFoundError, match="no group"):
        xr.open_dataset(tmp_path / "one", engine="b2nd", group="../two")


def test_uninit_and_verify(tmp_path):
    path = str(tmp_path / "x.b2nd")
    empty = blosc2.uninit((4, 6), np.dtype("f8"), urlpath=path, chunks=(2, 6))
    empty[:2] = 1
    found = xr.open_dataset(path, engine="b2nd", uninit=np.nan).x.values
    np.testing.assert_array_equal(found[2:], np.nan)
    folder = tmp_path / "set"
    folder.mkdir()
    blosc2.uninit((4,), np.dtype("i4"), urlpath=str(folder / "_coord_time.b2nd"))
    write_frame(folder / "x.b2nd", np.zeros(4), ("dim_0",))
    assert xr.open_dataset(folder, engine="b2nd", uninit=np.nan).time.dtype == "i4"
    with pytest.raises(b2nd_dask.ChecksumError, match="checksums"):
        xr.open_dataset(path, engine="b2nd", verify=True)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("x.b2nd", True),
        ("s3://bucket/x.b2nd?versionId=3", True),
        ("https://host/x.b2nd?version=3", True),
        ("what?.b2nd", True),
        ("x.b2z", True),
        ("x.b2d/", True),
        ("x.b2e", True),
        ("s3://bucket/x.b2z/group/a", True),
        ("x.nc", False),
        ("x.zarr", False),
        ("https://example.org/x", False),
        (b"bytes", False),
        (3, False),
        ("\0", False),
    ],
)
def test_guesses_by_the_name(name, ours):
    assert B2ndBackend().guess_can_open(name) is ours


def test_guesses_directories_by_what_they_hold(tmp_path):
    assert not B2ndBackend().guess_can_open(tmp_path)
    write_frame(tmp_path / "x.b2nd", ARRAY)
    assert not B2ndBackend().guess_can_open(tmp_path)
    (tmp_path / "dataset.json").write_text("{}")
    assert B2ndBackend().guess_can_open(tmp_path)
    assert list(xr.open_dataset(tmp_path).data_vars) == ["x"]


def manifest(folder, **entries):
    folder.mkdir(exist_ok=True)
    write_frame(folder / "t.b2nd", ARRAY, ("time", "x"))
    (folder / "dataset.json").write_text(json.dumps(entries))
    return folder


def frame(folder, *, dims=("a", "b"), **vlmeta):
    return write_frame(folder / "t.b2nd", ARRAY, dims, vlmeta=vlmeta)


def clashing(folder):
    write_frame(folder / "t.b2nd", ARRAY, ("a", "b"))
    write_frame(folder / "u.b2nd", ARRAY, ("b", "a"))
    return folder


WRONG = {
    "dims": (lambda f: frame(f, dims=("a",)), r"t\.b2nd.*'dims'.*1 dims.*2 axes"),
    "twice": (lambda f: frame(f, dims=("a", "a")), r"t\.b2nd.*'dims'.*same name: 'a'"),
    "no names": (lambda f: frame(f, dims=(1, 2)), r"'dims': a name must be text"),
    "name": (lambda f: frame(f, var=3), r"t\.b2nd.*'var': a name must be text"),
    "attrs": (lambda f: frame(f, attrs="{"), r"t\.b2nd.*'attrs': it is not JSON"),
    "deep attrs": (lambda f: frame(f, attrs="[" * 10**5), r"t\.b2nd.*'attrs': it is not JSON"),
    "typed": (lambda f: frame(f, **{"b2nd.attrs": [1]}), r"t\.b2nd.*'b2nd\.attrs'"),
    "coords": (lambda f: frame(f, coords={"x": b"abc"}), r"t\.b2nd.*'coords', 'x'"),
    "sizes": (
        lambda f: frame(f, coords={"a": cframe(np.arange(3), ["a"], "a")}),
        r"t\.b2nd: dim 'a' of 'a' has the length 3, but 4 in 't'",
    ),
    "clash": (clashing, r"u\.b2nd: dim 'b' of 'u' has the length 4, but 6 in 't'.*t\.b2nd"),
    "missing": (
        lambda f: manifest(f, data_vars=["t", "u"], coords=["z"]),
        r"names 'u', 'z', but there are no such frames",
    ),
    "no JSON": (lambda f: manifest(f) and (f / "dataset.json").write_text("{") and f, "not JSON"),
    "list": (lambda f: manifest(f, data_vars="t"), r"dataset\.json.*'data_vars'.*must be a list"),
    "path": (lambda f: manifest(f, coords=["../t"]), r"dataset\.json.*'coords'.*'\.\./t'"),
    "version": (lambda f: manifest(f, b2nd={"version": 9}), r"dataset\.json.*version 9"),
    "shorter": (
        lambda f: manifest(f, b2nd={"version": 1}, dims={"time": 9}),
        r"t\.b2nd: dim 'time' has the length 4, but 9 in dataset\.json",
    ),
    "group": (lambda f: manifest(f, dims={"time": -1}), r"'dims': the length of 'time' is -1"),
    "nothing": (lambda f: f, "no frames"),
    "zarr": (
        lambda f: (f / "zarr.json").write_text("{}") and f,
        r"no frames.*Zarr",
    ),
    "no frame": (lambda f: (f / "x.b2nd").write_bytes(b"x" * 99) and f / "x.b2nd", r"x\.b2nd"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_file_and_entry(tmp_path, what):
    make, message = WRONG[what]
    with pytest.raises((b2nd_dask.B2ndError, FileNotFoundError), match=message):
        xr.open_dataset(make(tmp_path), engine="b2nd")


def test_wrong_labels_leave_the_array_readable(tmp_path):
    path = frame(tmp_path, dims=(1,), coords=3)
    np.testing.assert_array_equal(b2nd_dask.from_b2nd(path).compute(), ARRAY)


def test_a_damaged_variable_can_be_left_out(tmp_path):
    write_frame(tmp_path / "t.b2nd", ARRAY, ("time", "x"))
    (tmp_path / "u.b2nd").write_bytes(b"damaged")
    with pytest.raises(b2nd_dask.FrameFormatError, match=r"u\.b2nd"):
        xr.open_dataset(tmp_path, engine="b2nd")
    assert list(xr.open_dataset(tmp_path, engine="b2nd", drop_variables="u").data_vars) == ["t"]


@pytest.mark.parametrize("name", ["other", "units"])
def test_attributes_that_cannot_be_decoded_are_named(tmp_path, name):
    path = write_frame(tmp_path / "t.b2nd", ARRAY, ("time", "x"))
    array = blosc2.open(str(path), mode="a")
    array.vlmeta[name] = blosc2.asarray(ARRAY)
    problem = rf"omitted from the attributes: .*t\.b2nd.*'{name}'"
    with pytest.warns(UserWarning, match=problem):
        assert xr.open_dataset(path).t.attrs == {}


@pytest.mark.parametrize("chunks", [None, {}])
def test_an_interrupted_append_is_not_seen(tmp_path, chunks):
    manifest(tmp_path, b2nd={"version": 1}, data_vars=["t", "u"], coords=["time"], dims={"time": 3})
    write_frame(tmp_path / "u.b2nd", np.arange(3), ("time",))
    write_frame(tmp_path / "_coord_time.b2nd", np.arange(4), ("time",), "time", coord=True)
    ds = xr.open_dataset(tmp_path, engine="b2nd", chunks=chunks).compute()
    expected = {"t": (("time", "x"), ARRAY[:3]), "u": ("time", np.arange(3))}
    xr.testing.assert_identical(ds, xr.Dataset(expected, {"time": np.arange(3)}))
    lazy = xr.open_dataset(tmp_path, engine="b2nd").t
    for position in (3, [3], -4):
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            lazy.isel(time=position).load()


WITHOUT_XARRAY = """
import sys
sys.modules["xarray"] = None
import b2nd_dask
assert "b2nd_dask.edges.xarray" not in sys.modules
try:
    import b2nd_dask.edges.xarray.backend
except ImportError as error:
    print(error)
"""


def test_without_xarray():
    run = [sys.executable, "-c", WITHOUT_XARRAY]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "pip install 'b2nd-dask[xarray]'" in done.stdout


def test_datasets_that_differ_in_many_attributes_are_not_combined(tmp_path):
    """Each attribute would become a dim: 2 ** 30 cells of a few bytes."""
    for run in range(2):
        attrs = {f"k{n}": run for n in range(30)}
        xr.Dataset({"t": ("x", [1.0, 2.0])}, attrs=attrs).b2nd.to_b2nd(tmp_path / f"run{run}")
    with pytest.raises(ValueError, match="differ in 30 attributes"):
        xr.open_dataset(tmp_path, engine="b2nd")
    assert xr.open_datatree(tmp_path, engine="b2nd")["run1"].attrs["k7"] == 1
