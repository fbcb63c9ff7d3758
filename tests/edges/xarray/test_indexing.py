"""Without dask: what is indexed of a frame is what is indexed of an array."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given
from hypothesis import strategies as st
from xarray.core import indexing

import b2nd_dask
from b2nd_dask.edges.xarray.backend_array import FrameArray
from b2nd_dask.frame.array import Frame
from tests.edges.xarray.labelled import write_frame
from tests.strategies import examples

SHAPE = (13, 7, 9)
DIMS = ("a", "b", "c")
ARRAY = np.random.default_rng(1).integers(0, 1000, SHAPE).astype("i4")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("array") / "x.b2nd"
    return write_frame(path, ARRAY, DIMS, "x", chunks=(4, 7, 3), blocks=(2, 3, 3))


def _axis(length):
    position = st.integers(-length, length - 1)
    bounds = st.none() | st.integers(-length - 2, length + 2)
    steps = st.integers(-3, 3).filter(bool) | st.none()
    return st.one_of(
        position,
        st.builds(slice, bounds, bounds, steps),
        st.lists(position, max_size=length + 3).map(lambda found: np.array(found, "i8")),
        st.lists(st.booleans(), min_size=length, max_size=length).map(np.array),
    )


outer = st.fixed_dictionaries(
    {}, optional={dim: _axis(n) for dim, n in zip(DIMS, SHAPE, strict=True)}
)


@given(first=outer, then=st.booleans())
@example(first={"a": slice(None, -1, -1)}, then=False)
@examples(80)
def test_indexes_along_each_axis(path, first, then):
    ours, plain = xr.open_dataset(path, engine="b2nd").x, xr.DataArray(ARRAY, dims=DIMS, name="x")
    ours, plain = ours.isel(first), plain.isel(first)
    if then and "a" in plain.dims and plain.sizes["a"] > 1:
        ours, plain = ours.isel(a=[-1, 0]), plain.isel(a=[-1, 0])
    np.testing.assert_array_equal(ours.values, plain.values)
    assert ours.dtype == plain.dtype


@given(data=st.data())
@examples(60)
def test_points(path, data):
    ours, plain = xr.open_dataset(path, engine="b2nd").x, xr.DataArray(ARRAY, dims=DIMS, name="x")
    shape = data.draw(st.sampled_from([(0,), (1,), (5,), (2, 3)]))
    names = ["p", "q"][: len(shape)]
    axes = data.draw(st.lists(st.sampled_from(DIMS), min_size=1, unique=True))
    index = {}
    for dim in axes:
        n = SHAPE[DIMS.index(dim)]
        flat = data.draw(st.lists(st.integers(-n, n - 1), min_size=6, max_size=6))
        values = np.array(flat)[: int(np.prod(shape))].reshape(shape)
        index[dim] = xr.DataArray(values, dims=names)
    rest = [dim for dim in DIMS if dim not in axes]
    if rest and data.draw(st.booleans()):
        index[rest[0]] = slice(None, None, -2)
    xr.testing.assert_identical(ours.isel(index).load(), plain.isel(index))


def test_points_beside_slices(path):
    array = indexing.LazilyIndexedArray(FrameArray(b2nd_dask.open_b2nd(path)))
    key = (np.array([[3], [-1]]), slice(5, None, -2), np.array([[0, 8]]))
    found = array.vindex[indexing.VectorizedIndexer(key)].get_duck_array()
    np.testing.assert_array_equal(found, ARRAY[key[0], 5::-2, key[2]])


def test_positions_out_of_bounds(path):
    x = xr.open_dataset(path, engine="b2nd").x
    with pytest.raises(IndexError, match="out of bounds"):
        x.isel(a=[13]).load()


@pytest.mark.parametrize(
    ("positions", "most"), [([3, 50, 98, 51], 4), ([0, 33, 66, 99], 4), ([69, 3, 36, 3], 3)]
)
def test_a_list_reads_its_chunks_alone(tmp_path, monkeypatch, positions, most):
    path = write_frame(tmp_path / "x.b2nd", np.arange(100), ("a",), "x", chunks=(1,))
    read, own = [], Frame.__getitem__

    def noted(self, index):
        read.append(own(self, index))
        return read[-1]

    x = xr.open_dataset(path, engine="b2nd").x.isel(a=positions)
    monkeypatch.setattr(Frame, "__getitem__", noted)
    np.testing.assert_array_equal(x, positions)
    assert sum(map(np.size, read)) <= most


def test_threads_pickles_and_copies(path):
    x = xr.open_dataset(path, engine="b2nd", cache=False).x
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: x.isel(a=i % 13).values, range(100)))
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each, ARRAY[i % 13])
    assert len(pickle.dumps(x)) < 4000
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.copy(deep=False)):
        np.testing.assert_array_equal(other.isel(b=slice(1, 3)).values, ARRAY[:, 1:3])


def test_a_changed_frame(path, tmp_path):
    own = write_frame(tmp_path / "x.b2nd", ARRAY, DIMS, "x")
    x = pickle.dumps(xr.open_dataset(own, engine="b2nd").x)
    write_frame(own, ARRAY + 1, DIMS, "x")
    with pytest.raises(b2nd_dask.StaleFrameError, match=r"x\.b2nd"):
        pickle.loads(x).load()


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 4), "i2"),
        np.array(["ä", "bcd", ""]),
        np.array([b"x", b"yz"]),
        np.array(["2001-01-01", "NaT"], "M8[ns]"),
        np.array([1, 2], "m8[s]"),
        np.array([True, False]),
        np.array([1 + 2j, 3]),
        np.arange(3, dtype=">f4"),
        np.array([b"a", b"b"], "S1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunks", [None, {}])
def test_dtypes(tmp_path, array, chunks):
    dims = DIMS[: array.ndim]
    path = write_frame(tmp_path / "x.b2nd", array, dims, "x")
    found = xr.open_dataset(path, engine="b2nd", chunks=chunks).compute()
    expected = xr.decode_cf(xr.Dataset({"x": (dims, array)}), concat_characters=False)
    xr.testing.assert_identical(found, expected)
    assert found.x.dtype == expected.x.dtype


@pytest.mark.parametrize("chunks", [None, {}])
def test_texts_and_records_of_another_byte_order(tmp_path, chunks):
    """xarray's own cast to the native byte order fails for records, and makes texts longer."""
    records = np.array([(1, 0.5), (2, -1.0), (3, 0.0)], [("a", ">i4"), ("b", ">f8")])
    texts = np.array(["ab", "", "\u00e4bc"], ">U3")
    xr.Dataset({"r": ("x", records), "t": ("x", texts)}).b2nd.to_b2nd(tmp_path / "w.b2d")
    for _ in range(2):
        found = xr.open_dataset(tmp_path / "w.b2d", engine="b2nd", chunks=chunks)
        for name, want in (("r", records), ("t", texts)):
            assert found[name].dtype == found[name].values.dtype == want.dtype.newbyteorder("=")
            assert found[name].values.tolist() == want.tolist()
            assert found[name][[2, 0]].values.tolist() == want[[2, 0]].tolist()
            assert found[name][1].values.tolist() == want[1].tolist()
        # what was read goes into the same frames again
        found.isel(x=slice(2)).b2nd.to_b2nd(tmp_path / "w.b2d", mode="a", append_dim="x")
        records, texts = (np.concatenate([each, each[:2]]) for each in (records, texts))
    assert b2nd_dask.open_b2nd(tmp_path / "w.b2d" / "r.b2nd").dtype == [("a", ">i4"), ("b", ">f8")]


@pytest.mark.parametrize("dtype", ["f4", "M8[s]", "U3", "S1", [("a", "i2"), ("b", "f8")]])
def test_lists_keep_dtypes(tmp_path, dtype):
    values = np.frombuffer(bytes(range(255)) * 4, "u1")[: 9 * np.dtype(dtype).itemsize].copy()
    array = np.array(list("abcdefghi"), dtype) if dtype == "U3" else values.view(dtype)
    path = write_frame(tmp_path / "x.b2nd", array, ("a",), "x", chunks=(2,))
    found = xr.open_dataset(path, engine="b2nd", decode_cf=False).x.isel(a=[7, 0, 3]).values
    assert found.dtype == array.dtype
    assert found.tobytes() == array[[7, 0, 3]].tobytes()
