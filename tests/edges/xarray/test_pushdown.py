"""Under ``chunks=`` the arrays are those of `from_b2nd`: selections and reductions read little."""

import operator
import pickle

import dask
import numpy as np
import pytest
import xarray as xr
from dask.array.core import getter
from distributed import Client, LocalCluster

import b2nd_dask
from b2nd_dask import from_b2nd
from b2nd_dask.edges.xarray import backend_array
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.tasks import compute_block, index_block, reduce_block
from tests.edges.xarray.labelled import write_frame
from tests.graph.pruning import chunks_read
from tests.graph.pushdown import elements_read, tasks_of

PACKED = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A frame of 6 chunks of 2 blocks, packed numbers."""
    raw = np.random.default_rng(0).integers(-1, 100, (60, 8, 9)).astype("i2")
    raw[30:40] = 0
    path = tmp_path_factory.mktemp("packed") / "t.b2nd"
    kwargs = {"chunks": (10, 8, 9), "blocks": (5, 8, 9)}
    return write_frame(path, raw, ("time", "lat", "lon"), "t", attrs=PACKED, **kwargs)


@pytest.fixture(params=[True, False], ids=["decoded", "raw"])
def t(path, request):
    return xr.open_dataset(path, engine="b2nd", chunks={}, mask_and_scale=request.param).t


REDUCTIONS = {
    **{name: operator.methodcaller(name) for name in ["mean", "min", "max", "std", "var"]},
    "sum": lambda t: t.sum(),
    "prod": lambda t: (t / 60).prod("time"),
    "sum of all": lambda t: t.sum(skipna=False),
    "mean of time": lambda t: t.mean("time"),
    "mean of a plane": lambda t: t.mean(("lat", "lon")),
    "work": lambda t: ((t - 273.15) * 1.8).max("lat"),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_pushed_into_the_reads(path, name):
    t = xr.open_dataset(path, engine="b2nd", chunks={}).t
    reduced = REDUCTIONS[name](t)
    assert tasks_of(reduce_block, reduced.data) > 0
    assert tasks_of(getter, reduced.data) == 0
    xr.testing.assert_allclose(reduced.compute(scheduler="sync"), REDUCTIONS[name](t.compute()))


#: What is computed of packed numbers with statistics, and how many chunks are read where none is
#: missing, where one is, and where some are in every chunk.
ANSWERED = {
    "max": (lambda x: x.max(), 0, 0, 0),
    "min": (lambda x: x.min(), 0, 1, 6),
    "max of all": (lambda x: x.max(skipna=False), 0, 1, 6),
    "mean": (lambda x: x.mean(), 0, 1, 6),
    "sum": (lambda x: x.sum(), 0, 1, 6),
    "degrees Celsius": (lambda x: (x - 273.15).mean(), 0, 1, 6),
    "count": (lambda x: x.count(), 0, 1, 6),
    "any": (lambda x: (x > 400).any(), 0, 0, 0),
    "range": (lambda x: x.max() - x.min(), 0, 1, 6),
}


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("name", ANSWERED)
def test_statistics_of_packed_numbers_answer(tmp_path, name, missing):
    program, *reads = ANSWERED[name]
    values = 273.15 + np.linspace(-20, 20, 4320).reshape(60, 8, 9)
    values[{0: slice(0), 1: slice(5, 6), 2: slice(5, None, 10)}[missing], 2] = np.nan
    packing = {"dtype": "i2", "scale_factor": 0.002, "add_offset": 273.15, "_FillValue": -32768}
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values)})
    how = {"t": packing | {"chunks": (10, 8, 9)}}
    t = ds.b2nd.to_b2nd(tmp_path / "t.b2d", encoding=how, stats=True).t
    with chunks_read() as counts:
        found = program(t).compute(scheduler="sync")
    assert len(counts) == reads[missing]
    with dask.config.set({"b2nd_dask.statistics": False}):
        expected = program(t).compute(scheduler="sync")
    if name in ("mean", "sum", "degrees Celsius"):
        xr.testing.assert_allclose(found, expected, rtol=1e-13)
    else:
        xr.testing.assert_identical(found, expected)


@pytest.mark.parametrize(
    ("select", "blocks"),
    [
        (lambda t: t.isel(time=5), 1),
        (lambda t: t.isel(time=slice(12, 14)), 1),
        (lambda t: t.isel(time=[3, 4, 51]), 2),
        (lambda t: t.assign_coords(time=range(60)).sel(time=slice(41, 43)), 1),
        (lambda t: t.isel(time=slice(0, 5)).mean(), 1),
        (lambda t: t.isel(time=-1, lat=2), 1),
        (lambda t: t.isel(time=33), 0),
    ],
    ids=["isel", "slice", "list", "sel", "mean of a slice", "row", "constant"],
)
def test_only_blocks_that_are_selected_are_decoded(t, select, blocks):
    selected = select(t)
    assert sum(read.blocks for read in b2nd_dask.plan(selected.data).frames) == blocks
    xr.testing.assert_allclose(selected.compute(scheduler="sync"), select(t.compute()))


def test_an_index_is_pushed_behind_the_decoding(path):
    t = xr.open_dataset(path, engine="b2nd", chunks={}).t
    plane = t.isel(time=5).data
    assert tasks_of(compute_block, plane) == 1
    assert elements_read(plane) == 8 * 9
    assert tasks_of(index_block, t.isel(time=[3, 4]).data) == 1


MODES = {
    "optimized twice": lambda x: dask.optimize(dask.optimize(x)[0])[0],
    "persisted": lambda x: x.persist(scheduler="sync"),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("mode", MODES)
def test_graphs_may_be_optimized_persisted_pickled(t, mode):
    expected = t.compute()
    xr.testing.assert_identical(MODES[mode](t).compute(), expected)
    xr.testing.assert_allclose(MODES[mode](t.mean("time")).compute(), expected.mean("time"))


def test_names_follow_from_the_version_of_the_frame(path, tmp_path):
    def opened(each):
        return xr.open_dataset(each, engine="b2nd", chunks={}).t.data

    assert opened(path).name == opened(path).name == opened(str(path)).name
    other = write_frame(tmp_path / "t.b2nd", np.zeros((6, 8)), ("a", "b"), "t")
    first = opened(other)
    write_frame(other, np.ones((6, 8)), ("a", "b"), "t")
    assert opened(other).name != first.name
    with pytest.raises(b2nd_dask.StaleFrameError):
        first.compute()


def test_raw_values_share_reads_with_from_b2nd(path):
    raw = xr.open_dataset(path, engine="b2nd", chunks={}, mask_and_scale=False).t.data
    assert raw.name == from_b2nd(path).name


@pytest.mark.parametrize("chunks", [{}, "auto", {"time": 20}, {"time": 7, "lat": 3}, 4, -1])
@pytest.mark.filterwarnings("ignore:The specified chunks separate:UserWarning")
@pytest.mark.filterwarnings("ignore:.*would be decoded:UserWarning")
def test_chunks(path, chunks):
    ds = xr.open_dataset(path, engine="b2nd", chunks=chunks)
    assert any(name.startswith("read") for name in ds.t.data.dask.layers)
    xr.testing.assert_identical(ds.compute(), xr.open_dataset(path, engine="b2nd").load())


def test_chunks_of_a_selection(path):
    lazy = xr.open_dataset(path, engine="b2nd").t.isel(time=slice(3, 40), lat=[5, 1], lon=2)
    chunked = lazy.chunk(time=10)
    assert any(name.startswith("read") for name in chunked.data.dask.layers)
    assert chunked.chunks == ((10, 10, 10, 7), (2,))
    xr.testing.assert_identical(chunked.compute(), lazy.compute())


def test_other_arrays_are_left_to_xarray(tmp_path):
    ds = xr.Dataset({"t": ("x", np.arange(5.0))})
    ds.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "t.nc", engine="h5netcdf", chunks={}) as other:
        assert not any(name.startswith("read") for name in other.t.data.dask.layers)
        xr.testing.assert_identical(other.compute(), ds)


def test_a_changed_xarray_makes_its_own_arrays(path, monkeypatch):
    expected = xr.open_dataset(path, engine="b2nd", chunks={}).compute()
    manager = backend_array._names().DaskManager
    monkeypatch.setattr(manager, "from_array", manager.from_array.xarray_own)
    changed = {"coding.variables": {"_scale_offset_decoding": "data, something else"}}
    monkeypatch.setattr(backend_array, "_NAMES", backend_array._NAMES | changed)
    monkeypatch.setattr(_dask_compat._Warned, "done", False)
    backend_array._names.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="to xarray: .* in xarray.coding.variables, has"):
            backend_array.install()
        ds = xr.open_dataset(path, engine="b2nd", chunks={})
        assert not any(name.startswith("read") for name in ds.t.data.dask.layers)
        xr.testing.assert_identical(ds.compute(scheduler="threads"), expected)
    finally:
        backend_array._names.cache_clear()


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(processes=False, **options) as cluster, Client(cluster) as client:
        yield client


def test_on_a_cluster(cluster, t):
    expected = t.compute(scheduler="sync")
    xr.testing.assert_allclose(t.mean("time").compute(), expected.mean("time"))
    xr.testing.assert_identical(t.isel(time=5).persist().compute(), expected.isel(time=5))
