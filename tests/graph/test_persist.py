"""`persist_compressed`: equal values in less memory, in this process and on a cluster."""

from __future__ import annotations

import gc
import pickle

import blosc2
import dask
import dask.array as da
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import xarray as xr
from dask.sizeof import sizeof
from distributed import Client, LocalCluster
from distributed.protocol import deserialize, serialize
from distributed.protocol.compression import maybe_compress
from hypothesis import given

from b2nd_dask import from_b2nd, persist_compressed
from b2nd_dask.edges.cli.demo import find_mask, land_bands
from b2nd_dask.frame.compressed import CompressedArray, compress
from b2nd_dask.frame.read import decode
from tests.graph.gate import eventually
from tests.strategies import examples

RNG = np.random.default_rng(5)


def rounded_field(shape=(600, 800)):
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    field = 280 + 20 * np.sin(columns / 200) * np.cos(rows / 150)
    return np.round(field + RNG.normal(0, 0.3, shape), 1)


def land():
    return next(land_bands(find_mask(), 1300))[700:, 12000:16000]


def blocks_of(x):
    """The compressed blocks that an array holds in this process."""
    graph = x.__dask_graph__()
    found = (getattr(task, "value", task) for task in dict(graph).values())
    return [value for value in found if isinstance(value, CompressedArray)]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_values_and_blocks_are_those_of_the_array(scheduler):
    values = rounded_field()
    x = da.from_array(values, chunks=(250, 300))
    with dask.config.set(scheduler=scheduler):
        kept = persist_compressed(x)
        assert isinstance(kept, da.Array)
        assert (kept.chunks, kept.dtype) == (x.chunks, x.dtype)
        np.testing.assert_array_equal(kept.compute(), values)
        np.testing.assert_array_equal(kept[5:500:7, ::-3].compute(), values[5:500:7, ::-3])
        np.testing.assert_array_equal(kept[[3, 599, 3]].compute(), values[[3, 599, 3]])
        np.testing.assert_allclose((kept * 2 + 1).mean(axis=0).compute(), (values * 2 + 1).mean(0))
        np.testing.assert_array_equal(kept[7, 9].compute(), values[7, 9])


@pytest.mark.parametrize("data", [land, rounded_field], ids=["land mask", "rounded floats"])
def test_a_fifth_of_the_memory_is_enough(data):
    values = data()
    kept = persist_compressed(da.from_array(values, chunks=(400, 400)))
    blocks = blocks_of(kept)
    assert len(blocks) == kept.npartitions
    assert values.nbytes > 5 * sum(map(sizeof, blocks))
    np.testing.assert_array_equal(kept.compute(), values)


def test_the_source_is_read_once(tmp_path):
    path = tmp_path / "x.b2nd"
    blosc2.asarray(rounded_field(), urlpath=str(path), chunks=(100, 800))
    kept = persist_compressed(from_b2nd(path))
    path.unlink()
    assert kept.shape == (600, 800)
    assert kept.sum().compute() == kept.sum().compute()


def test_slices_decode_what_they_touch(monkeypatch):
    values = RNG.integers(0, 99, (2000, 1000))
    kept = persist_compressed(da.from_array(values, chunks=(1000, 1000)))
    decoded, decode_chunk = [], decode.decode_chunk

    def counted(data, header, out):
        decoded.append(header.nbytes)
        decode_chunk(data, header, out)

    monkeypatch.setattr(decode, "decode_chunk", counted)
    np.testing.assert_array_equal(kept[5, :10].compute(scheduler="sync"), values[5, :10])
    assert 0 < sum(decoded) < values.nbytes / 20


def test_constants_take_no_memory_and_are_writable():
    def half(block):
        block *= 0.5
        return block

    kept = persist_compressed(da.full((4000, 1000), 3.0, chunks=(400, 1000)))
    assert sum(map(sizeof, blocks_of(kept))) < 10000
    assert kept.map_blocks(half, dtype="f8").sum().compute() == 6e6
    # not shared: the persisted blocks are unchanged
    assert kept.max().compute() == 3


@given(data=st.data())
@examples(40)
def test_any_array(data):
    kinds = [hnp.integer_dtypes(), hnp.floating_dtypes(endianness="?"), hnp.boolean_dtypes()]
    kinds += [hnp.datetime64_dtypes(max_period="D", min_period="ms"), st.just(np.dtype("S5"))]
    kinds += [st.just(np.dtype("U3")), st.just(np.dtype([("a", "<i2"), ("b", ">f8", (2,))]))]
    dtype = data.draw(st.one_of(kinds))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
    values = np.frombuffer(RNG.bytes(int(np.prod(shape)) * dtype.itemsize), "u1")
    values = np.zeros(shape, dtype) if dtype.kind in "UMm" else values.view(dtype).reshape(shape)
    small = compress(values)
    assert (small.shape, small.dtype) == (shape, dtype)
    assert small[...].tobytes() == values.tobytes()
    if values.ndim:
        index = data.draw(hnp.basic_indices(shape, allow_newaxis=False))
        assert np.asarray(small[index]).tobytes() == np.asarray(values[index]).tobytes()
    again = pickle.loads(pickle.dumps(small, protocol=data.draw(st.sampled_from([4, 5]))))
    assert again[...].tobytes() == values.tobytes()


def test_an_index_of_any_kind():
    values = RNG.normal(size=(30, 20))
    small = compress(values)
    np.testing.assert_array_equal(small[[3, 1]], values[[3, 1]])
    np.testing.assert_array_equal(small[values > 1], values[values > 1])
    np.testing.assert_array_equal(np.asarray(small), values)
    for wrong in (31, (0, 0, 0), "a"):
        with pytest.raises(IndexError):
            small[wrong]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(small, copy=False)


def test_what_cannot_be_compressed():
    with pytest.raises(TypeError, match="object"):
        persist_compressed(da.from_array(np.array([1, "a"], object), chunks=2))
    with pytest.raises(TypeError, match=r"da\.ma\.filled"):
        persist_compressed(da.ma.masked_greater(da.ones(4), 2))
    # the meta of this array does not show that its blocks are masked
    x = da.ones(4).map_blocks(np.ma.masked_array, meta=np.empty(0))
    with pytest.raises(TypeError, match=r"da\.ma\.filled"):
        persist_compressed(x)
    x = da.ones(9, chunks=3)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        persist_compressed(x[x > 0])
    with pytest.raises(ValueError, match="dimensions"):
        persist_compressed(da.ones((1,) * 17))
    with pytest.raises(TypeError, match="nonsense"):
        persist_compressed(x, cparams={"nonsense": 1})


def test_parameters_of_the_compression():
    values = rounded_field()
    plain = persist_compressed(da.from_array(values), cparams={"clevel": 0})
    assert sum(map(sizeof, blocks_of(plain))) > values.nbytes
    lz4 = persist_compressed(da.from_array(values), cparams=blosc2.CParams(codec=blosc2.Codec.LZ4))
    assert sum(map(sizeof, blocks_of(lz4))) < values.nbytes
    np.testing.assert_array_equal(lz4.compute(), values)


def test_messages_carry_the_bytes_as_they_are():
    small = compress(rounded_field())
    header, frames = serialize(small)
    assert small.cbytes < sum(map(len, frames)) < small.cbytes + 1000
    # as spilling does: it compresses a sample, and leaves compressed data unchanged
    assert all(maybe_compress(frame)[1] is frame for frame in frames)
    np.testing.assert_array_equal(deserialize(header, frames)[...], small[...])


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="700 MB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def stored(client):
    """Bytes of results by their names on the dashboard."""
    return client.run_on_scheduler(
        lambda dask_scheduler: {
            name: prefix.nbytes_total for name, prefix in dask_scheduler.task_prefixes.items()
        }
    )


def test_workers_hold_compressed_blocks(cluster, tmp_path):
    values = rounded_field((2000, 4000))
    blosc2.asarray(values, urlpath=str(tmp_path / "x.b2nd"), chunks=(500, 1000))
    kept = persist_compressed(from_b2nd(tmp_path / "x.b2nd"))
    np.testing.assert_array_equal(kept[::3, 5:].compute(), values[::3, 5:])
    assert values.nbytes > 5 * stored(cluster)["compress"] > 0
    np.testing.assert_allclose(kept.std().compute(), values.std())
    del kept
    eventually(lambda: _is_freed(cluster))


def _is_freed(cluster):
    gc.collect()
    return not cluster.run_on_scheduler(_names_held).get("compress")


def _names_held(dask_scheduler):
    return {name: len(p.groups) for name, p in dask_scheduler.task_prefixes.items() if p.groups}


@pytest.mark.parametrize("lazy", [True, False])
def test_labelled_arrays_keep_their_labels(lazy):
    values = rounded_field((60, 80))
    x = xr.DataArray(
        da.from_array(values, chunks=(30, 40)) if lazy else values,
        dims=("y", "x"),
        coords={"y": np.arange(60), "t": 5},
        name="field",
        attrs={"units": "K"},
    )
    kept = persist_compressed(x)
    assert blocks_of(kept.data)
    xr.testing.assert_identical(kept.compute(), x.compute())
    assert isinstance(persist_compressed(x.variable), xr.Variable)
    dataset = xr.Dataset({"a": x, "b": x + 1}, attrs={"title": "two"})
    with pytest.raises(TypeError, match=r"x\.map\(b2nd_dask\.persist_compressed, keep"):
        persist_compressed(dataset)
    both = dataset.map(persist_compressed, keep_attrs=True)
    xr.testing.assert_identical(both.compute(), dataset.compute())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda block: np.ma.masked_equal(block, 3), "da.ma.filled"),
        (lambda block: block.astype(object), "has the dtype object"),
        (lambda block: block + 0.5, "has the dtype float64, but the array has the dtype int64"),
        (lambda block: [{"a": 1}] * len(block), "has the dtype object"),
    ],
    ids=["masked", "objects", "floats", "list"],
)
def test_blocks_that_are_not_what_the_array_promises(change, message):
    x = da.arange(8, chunks=4).map_blocks(change, dtype="i8", meta=np.empty(0, "i8"))
    with pytest.raises(TypeError, match=f"persist_compressed: a block .*{message}"):
        persist_compressed(x)


@pytest.mark.parametrize("index", [slice(None, None, 2), None], ids=["fewer", "more axes"])
def test_blocks_of_another_shape(index):
    x = da.arange(10, chunks=5).map_blocks(lambda block: block[index], meta=np.empty(0, "i8"))
    with pytest.raises(ValueError, match=r"persist_compressed: a block has the shape .* \(5,\)"):
        persist_compressed(x)


def test_masked_arrays():
    with pytest.raises(TypeError, match=r"no masks: pass da\.ma\.filled"):
        persist_compressed(np.ma.masked_equal(np.arange(5), 3))
