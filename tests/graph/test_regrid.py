"""Rechunks that become reads in other blocks: the same elements, one task for each block."""

import operator
import pickle

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.array import chunk, core
from dask.blockwise import optimize_blockwise
from distributed import Client, LocalCluster, wait
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import ChecksumError, from_b2nd, to_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.joined import join
from b2nd_dask.frame.read import read_cost
from b2nd_dask.frame.read.read_cost import Boxes
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read import sizes as sizes_module
from b2nd_dask.graph.read.sizes import is_cheap_in_blocks
from tests.counting import bytes_read
from tests.graph.pruning import chunks_read
from tests.graph.pushdown import calls, nodes_in
from tests.strategies import examples

VALUES = np.random.default_rng(7).normal(size=(40, 30, 20))
#: Whole blocks, as time series.
SERIES = (40, 10, 10)


@pytest.fixture(scope="module", autouse=True)
def cheap_visits():
    """Treat tiny chunks like large ones: only decoded bytes count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_cost, "VISIT_NBYTES", 1)
        yield


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    path = tmp_path_factory.mktemp("maps") / "maps.b2nd"
    to_b2nd(VALUES, path, chunks=(2, 30, 20), blocks=(1, 5, 5))
    return path


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as made, Client(made) as client:
        yield client


#: Functions that make blocks of other blocks.
MOVING = (operator.getitem, chunk.getitem, core.concatenate_shaped)


def reads_new_blocks(x):
    """Whether new blocks are read, not cut and joined from other blocks."""
    graph = da.Array.__dask_optimize__(x.__dask_graph__(), x.__dask_keys__())
    moves = any(calls(node, function) for node in nodes_in(graph.values()) for function in MOVING)
    return not moves and not any("p2p" in str(key) for key in graph)


def check(x, expected, chunks, *, anew=True):
    made = x.rechunk(chunks)
    assert made.dtype == expected.dtype
    assert reads_new_blocks(made) == anew
    np.testing.assert_array_equal(made.compute(scheduler="sync"), expected)
    return made


CASES = {
    "read": lambda x: x,
    "elementwise": lambda x: x * 2 + 1,
    "two reads": lambda x: np.sqrt(abs(x)) + x,
    "cast": lambda x: x.astype("f4"),
    "slice": lambda x: x[10:33, 5:],
    "slices": lambda x: x[3:][:20, 2:22][1:],
    "where": lambda x: x.clip(0, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_reads_in_the_new_blocks(maps, name):
    x = CASES[name](from_b2nd(maps))
    made = check(x, CASES[name](VALUES), (x.shape[0], 10, 10))
    # one task for each block, without dependencies
    (done,) = dask.optimize(made)
    tasks = dict(done.dask)
    blocks = [task for task in tasks.values() if not task.dependencies]
    assert len(blocks) == made.npartitions


@pytest.mark.parametrize("name", CASES)
def test_transposes(maps, name):
    x = CASES[name](from_b2nd(maps)).T
    check(x, CASES[name](VALUES).T, (10, 10, x.shape[2]))
    check(x.transpose(1, 0, 2), CASES[name](VALUES).T.transpose(1, 0, 2), (10, 10, -1))


def test_any_chunks(maps):
    x = from_b2nd(maps)
    assert x.rechunk(x.chunks) is x
    check(x.rechunk(SERIES), VALUES, x.chunks)
    for chunks in ({0: -1, -1: 5}, "auto", -1, (None, 10, "auto"), {0: "auto"}):
        check(x, VALUES, chunks)


def test_what_slices_of_a_difference_need_is_read_once(maps):
    """Their blocks do not align: dask rechunks one or both."""
    x = from_b2nd(maps)
    with chunks_read() as read:
        made = (x[1:] - x[:-1]).compute(scheduler="sync")
    np.testing.assert_array_equal(made, np.diff(VALUES, axis=0))
    assert len(read) == x.npartitions


OTHERS = {
    "elementwise": lambda y: y * 2,
    "reduction": lambda y: y.max(axis=0),
    "slice": lambda y: y[:, 3:],
    "transpose": lambda y: y.T + 1,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("first", ["a", "z"])
def test_blocks_that_several_results_need_are_read_once(maps, first, other):
    """In any order of the layers, which depends on their names."""
    y = from_b2nd(maps).rechunk(SERIES)
    results = y.map_blocks(np.sort, name=first), other(y)
    with chunks_read() as once:
        dask.compute(y.map_blocks(np.sort), scheduler="sync")
    with chunks_read() as read:
        _, made = dask.compute(*results, scheduler="sync")
    assert len(read) == len(once)
    np.testing.assert_array_equal(made, other(VALUES))


def test_a_tree_reads_old_and_new_blocks(maps):
    """One task for each block reads both arrays, since nothing else needs them."""
    x = from_b2nd(maps)
    made = (x[1:].rechunk({0: 2})[:38] + x[:38]).map_blocks(np.sort)
    (done,) = dask.optimize(made)
    assert len(dict(done.dask)) == made.npartitions
    np.testing.assert_array_equal(made.compute(), np.sort(VALUES[1:39] + VALUES[:38]))


def test_mean_is_kept(maps):
    """The mean, which is no block of the read, stays unchanged."""
    x = from_b2nd(maps)
    mean = x.mean().compute(scheduler="sync")
    made = (x - x.mean()).rechunk(SERIES)
    assert reads_new_blocks(made)
    np.testing.assert_allclose(made.compute(scheduler="sync"), VALUES - mean)


@pytest.mark.parametrize(
    ("function", "chunks"),
    [
        (lambda x: x[::-1], SERIES),
        (lambda x: x[::2], SERIES),
        (lambda x: x[[5, 1, 3]], (3, 10, 10)),
        (lambda x: x + x.mean(axis=0, keepdims=True), SERIES),
        (lambda x: x.cumsum(axis=0), SERIES),
        # one element of a block in each task
        (lambda x: x, (40, 1, 1)),
    ],
)
def test_left_to_dask(maps, function, chunks):
    x = function(from_b2nd(maps))
    made = x.rechunk(chunks)
    assert not reads_new_blocks(made)
    np.testing.assert_allclose(made.compute(scheduler="sync"), function(VALUES), atol=1e-12)


def test_functions_that_see_their_block(maps):
    x = from_b2nd(maps).map_blocks(lambda block: block - block.mean(), dtype=float)
    expected = x.compute(scheduler="sync")
    check(x, expected, SERIES, anew=False)
    check(from_b2nd(maps).persist(scheduler="sync"), VALUES, SERIES, anew=False)


@pytest.mark.parametrize("source", ["memory", "frame"])
@pytest.mark.parametrize("form", ["map_blocks", "blockwise"])
@pytest.mark.parametrize("lengths", [(20, 15, 10), (1, 15, 10), (20, 1, 10), (1, 1, 10), (1, 1, 1)])
def test_one_block_that_goes_with_each_block(maps, tmp_path, source, form, lengths):
    x = from_b2nd(maps, chunks=(20, 15, 10))
    given = np.arange(np.prod(lengths)).reshape(lengths).astype("f8")
    to_b2nd(given, tmp_path / "given.b2nd")
    block = (
        da.from_array(given, chunks=lengths)
        if source == "memory"
        else from_b2nd(tmp_path / "given.b2nd", chunks=lengths)
    )
    if form == "map_blocks":
        y = da.map_blocks(np.add, x, block, dtype="f8")
    else:
        y = da.blockwise(np.add, "ijk", x, "ijk", block, "ijk", dtype="f8", align_arrays=False)
    whole = np.broadcast_to(given, (20, 15, 10))
    expected = VALUES + np.tile(whole, (2, 2, 2))
    np.testing.assert_array_equal(y.compute(), expected)
    for chunks in ((40, 10, 10), (2, 30, 20)):
        np.testing.assert_array_equal(y.rechunk(chunks).compute(), expected)
    small = da.zeros(VALUES.shape, chunks=(2, 30, 20))
    np.testing.assert_allclose((y + small).sum().compute(), expected.sum())
    to_b2nd(y, tmp_path / "written.b2nd", chunks=(40, 30, 20))
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "written.b2nd"))[:], expected)


def test_blocks_that_a_function_does_not_find_at_its_own_place(maps):
    x = from_b2nd(maps, chunks=(10, 10, 10))[:20, :, :]
    made = da.blockwise(np.negative, "ijk", x, "ikj", dtype=float)
    check(made, made.compute(scheduler="sync"), (20, 10, 10), anew=False)


def test_what_the_user_asks_for_goes_to_dask(maps):
    x = from_b2nd(maps)
    with dask.config.set({"b2nd_dask.optimize": False}):
        assert not reads_new_blocks(x.rechunk(SERIES))
    with dask.annotate(priority=3):
        annotated = x + 1
    assert not reads_new_blocks(annotated.rechunk(SERIES))


@given(st.data())
@examples(15)
def test_any_grid(data):
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3), label="shape")
    pieces = st.tuples(*(st.integers(1, n) for n in shape))
    values = np.arange(float(np.prod(shape))).reshape(shape)
    chunks = data.draw(pieces, label="chunks")
    blocks = tuple(data.draw(st.integers(1, c)) for c in chunks)
    x = from_b2nd(blosc2.asarray(values, chunks=chunks, blocks=blocks).to_cframe())
    for _ in range(data.draw(st.integers(0, 4), label="steps")):
        step = data.draw(st.sampled_from(["add", "transpose", "slice", "rechunk"]))
        if step == "add":
            x, values = x + 1, values + 1
        elif step == "transpose":
            order = data.draw(st.permutations(range(x.ndim)))
            x, values = x.transpose(order), values.transpose(order)
        elif step == "slice":
            starts = [data.draw(st.integers(0, n - 1)) for n in x.shape]
            stops = [data.draw(st.integers(s + 1, n)) for s, n in zip(starts, x.shape, strict=True)]
            index = tuple(map(slice, starts, stops))
            x, values = x[index], values[index]
        x = x.rechunk(tuple(data.draw(st.integers(1, n)) for n in x.shape))
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_xarray_pickle_and_types(maps):
    x = from_b2nd(maps)
    labelled = xr.DataArray(x, dims=("t", "y", "x")) * 2
    made = labelled.chunk({"t": -1, "y": 10, "x": 10})
    assert reads_new_blocks(made.data)
    np.testing.assert_array_equal(made.compute(scheduler="sync"), VALUES * 2)
    rechunked = x.rechunk(SERIES)
    assert type(rechunked) is da.Array
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rechunked)), VALUES)
    (done,) = dask.persist(rechunked, scheduler="sync")
    np.testing.assert_array_equal(done, VALUES)


@pytest.mark.parametrize("count", [1, 2])
def test_special_chunks_stay_special(tmp_path, count):
    values = np.concatenate([np.zeros((20, 30, 20)), VALUES[20:]])
    paths = [tmp_path / f"half{i}.b2nd" for i in range(count)]
    for path in paths:
        to_b2nd(values, path, chunks=(2, 30, 20), blocks=(1, 5, 5))
    made = from_b2nd(paths).rechunk((20, 10, 10))
    assert reads_new_blocks(made)
    zeros, data = made[: 20 - 1] + 1, made[20:40, :10] + 1
    # imports are not measured
    dask.compute(zeros, data, scheduler="sync")
    read, block = bytes_read(lambda: zeros.compute(scheduler="sync"))
    assert read == 0
    assert (block == 1).all()
    assert bytes_read(lambda: data.compute(scheduler="sync"))[0] > 0


def test_options_of_the_read_are_kept(maps):
    raw = bytearray(maps.read_bytes())
    # some byte of a chunk, in a block that is not read
    raw[len(raw) // 2] ^= 1
    x = from_b2nd(bytes(raw), verify=True).rechunk(SERIES)
    with pytest.raises(ChecksumError):
        x.compute(scheduler="sync")


def test_no_data_travels(maps, cluster):
    made = (from_b2nd(maps) * 2).rechunk(SERIES)
    tops = made.map_blocks(lambda block: block.max(axis=(0, 1, 2), keepdims=True))
    (done,) = dask.optimize(tops)
    assert not [key for key, task in dict(done.dask).items() if task.dependencies]
    before = _transferred(cluster)
    computed = tops.persist()
    wait(computed)
    assert _transferred(cluster) == before
    assert computed.compute().max() == VALUES.max() * 2
    # dask's own rechunk moves blocks
    with dask.config.set({"b2nd_dask.optimize": False}):
        wait((from_b2nd(maps) * 2).rechunk(SERIES).persist())
    assert _transferred(cluster) != before


def _transferred(client):
    return client.run(lambda dask_worker: dask_worker.state.transfer_incoming_count_total)


def test_bounds_of_work(maps, monkeypatch):
    frame = reference_of_path(maps)
    grid = frame.grid
    monkeypatch.setattr(read_cost, "VISIT_NBYTES", 10 * grid.chunk_nbytes)
    sizes = from_b2nd(maps, chunks=SERIES).chunks
    assert Boxes(grid, sizes).decodes == 1.0
    # six blocks read from each chunk
    assert Boxes(grid, sizes).work == pytest.approx((6 * 10 + 1) / 11)
    assert not is_cheap_in_blocks(frame, sizes, (0, 0, 0))
    # a read of a frame larger than the memory may take longer
    monkeypatch.setattr(sizes_module, "HELD_SHARE", 0)
    assert is_cheap_in_blocks(frame, sizes, (0, 0, 0))
    # in stores no chunk is requested twice
    monkeypatch.setattr(FrameReference, "is_remote", True)
    assert not is_cheap_in_blocks(frame, sizes, (0, 0, 0))
    assert is_cheap_in_blocks(frame, from_b2nd(maps, chunks=(10, 30, 20)).chunks, (0, 0, 0))


def reference_of_path(path):
    from b2nd_dask import open_b2nd

    return reference_of(open_b2nd(path))


def test_written_parts_are_verified(maps, tmp_path):
    """A rechunked and written array gets new checksums, which must not hide damage."""
    source = tmp_path / "damaged.b2nd"
    # small chunks would be read whole
    to_b2nd(VALUES, source, chunks=(10, 30, 20), blocks=(1, 5, 5), cparams={"clevel": 0})
    raw = bytearray(source.read_bytes())
    raw[len(raw) // 2] ^= 1
    source.write_bytes(raw)
    for function in (lambda x: x, lambda x: x + 1, lambda x: x[1:39]):
        x = function(from_b2nd(source))
        made = x.rechunk((x.shape[0], 10, 10))
        assert reads_new_blocks(made)
        with pytest.raises(ChecksumError, match=r"damaged\.b2nd"):
            to_b2nd(made, tmp_path / "series.b2nd")
    to_b2nd(from_b2nd(maps).rechunk(SERIES) * 2, tmp_path / "series.b2nd")
    np.testing.assert_array_equal(from_b2nd(tmp_path / "series.b2nd"), VALUES * 2)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The same elements in four frames, one of them with other chunks."""
    folder = tmp_path_factory.mktemp("parts")
    for number, (start, stop) in enumerate(PARTS):
        chunks = (3 if number == 2 else 2, 30, 20)
        to_b2nd(VALUES[start:stop], folder / f"p{number}.b2nd", chunks=chunks, blocks=(1, 5, 5))
    return sorted(folder.iterdir())


PARTS = [(0, 10), (10, 14), (14, 29), (29, 40)]


@pytest.mark.parametrize("name", CASES)
def test_joined_frames(parts, name):
    x = CASES[name](from_b2nd(parts))
    made = check(x, CASES[name](VALUES), (x.shape[0], 10, 10))
    (done,) = dask.optimize(made)
    blocks = [task for task in dict(done.dask).values() if not task.dependencies]
    assert len(blocks) == made.npartitions
    check(x, CASES[name](VALUES), (12, 10, 10))
    check(x.T, CASES[name](VALUES).T, (10, 10, x.shape[0]))
    # one element of a block in each task
    check(x, CASES[name](VALUES), (x.shape[0], 1, 1), anew=False)


def test_joined_frames_in_any_chunks(parts):
    x = from_b2nd(parts)
    check(x.rechunk(SERIES), VALUES, x.chunks)
    stacked = from_b2nd([parts[0]] * 5, axis=1, stack=True)
    check(stacked, np.stack([VALUES[:10]] * 5, axis=1), (10, 5, 10, 10))
    pickled = pickle.loads(pickle.dumps(x.rechunk(SERIES) + 1))
    np.testing.assert_array_equal(pickled.compute(scheduler="sync"), VALUES + 1)


@given(st.data())
@examples(15)
def test_any_grid_of_joined_frames(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3), label="shape")
    stack = data.draw(st.booleans(), label="stack")
    axis = data.draw(st.integers(0, len(shape) - 1 + stack), label="axis")
    frames, arrays = [], []
    for seed in range(data.draw(st.integers(1, 4), label="frames")):
        own = list(shape)
        if not stack:
            own[axis] = data.draw(st.integers(1, 6))
        values = np.random.default_rng(seed).normal(size=own) * (seed != 1)
        chunks = tuple(data.draw(st.integers(1, n)) for n in own)
        blocks = tuple(data.draw(st.integers(1, c)) for c in chunks)
        frames.append(blosc2.asarray(values, chunks=chunks, blocks=blocks).to_cframe())
        arrays.append(values)
    values = (np.stack if stack else np.concatenate)(arrays, axis)
    x = from_b2nd(frames, axis=axis, stack=stack)
    for _ in range(2):
        starts = [data.draw(st.integers(0, n - 1)) for n in x.shape]
        stops = [data.draw(st.integers(s + 1, n)) for s, n in zip(starts, x.shape, strict=True)]
        index = tuple(map(slice, starts, stops))
        x, values = x[index] + 1, values[index] + 1
        x = x.rechunk(tuple(data.draw(st.integers(1, n)) for n in x.shape))
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_bounds_of_work_of_joined_frames(parts, monkeypatch):
    joined = join([reference_of_path(path) for path in parts], 0, stacked=False)
    sizes = from_b2nd(parts, chunks=SERIES).chunks
    assert is_cheap_in_blocks(joined, sizes, (0, 0, 0))
    monkeypatch.setattr(FrameReference, "is_remote", True)
    assert not is_cheap_in_blocks(joined, sizes, (0, 0, 0))
    # whole chunks of each frame
    whole = ((14, 12, 14), (30,), (20,))
    assert is_cheap_in_blocks(joined, whole, (0, 0, 0))
    assert not is_cheap_in_blocks(joined, ((13, 13, 14), (30,), (20,)), (0, 0, 0))
    # a part of the frames: its blocks end where chunks do
    assert is_cheap_in_blocks(joined, ((1, 2, 15, 11), (30,), (20,)), (11, 0, 0))


def test_written_parts_of_joined_frames_are_verified(parts, tmp_path):
    source = tmp_path / "damaged.b2nd"
    to_b2nd(VALUES[:10], source, chunks=(10, 30, 20), blocks=(1, 5, 5), cparams={"clevel": 0})
    raw = bytearray(source.read_bytes())
    raw[len(raw) // 2] ^= 1
    source.write_bytes(raw)
    made = from_b2nd([source, *parts[1:]]).rechunk(SERIES)
    assert reads_new_blocks(made)
    with pytest.raises(ChecksumError, match=r"damaged\.b2nd"):
        to_b2nd(made, tmp_path / "series.b2nd")
    series = to_b2nd(from_b2nd(parts), tmp_path / "series.b2nd", chunks=SERIES)
    np.testing.assert_array_equal(series.compute(scheduler="sync"), VALUES)


def test_what_others_have_fused_is_written_as_it_is(maps, tmp_path):
    x = from_b2nd(maps, chunks=SERIES) + 1
    fused = optimize_blockwise(x.dask, [x.name])
    assert len(fused.layers) == 1
    x = da.Array(fused, x.name, x.chunks, x.dtype)
    to_b2nd(x, tmp_path / "series.b2nd", chunks=SERIES)
    np.testing.assert_array_equal(from_b2nd(tmp_path / "series.b2nd"), VALUES + 1)


NEW_AXES = {
    "first": lambda x: x[None].rechunk(((0, 1, 0), (40,), (30,), (0, 20))),
    "last": lambda x: x[..., None].rechunk(((40,), (0, 30), (20,), (1, 0))),
    "moved": lambda x: x[:, None].transpose([2, 1, 0, 3]).rechunk({1: (0, 1)}),
    "after work": lambda x: (x[None] * 2).rechunk({0: (0, 1, 0)}),
    "and back": lambda x: x[None].rechunk({0: (0, 1)}).rechunk({0: (1,)}),
}


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
@pytest.mark.parametrize("name", NEW_AXES)
def test_blocks_of_no_elements_along_a_new_axis(tmp_path, name, array_type):
    if array_type == "dask-array":
        pytest.importorskip("dask_array")
    to_b2nd(VALUES, tmp_path / "a.b2nd", chunks=SERIES)
    x = NEW_AXES[name](from_b2nd(tmp_path / "a.b2nd", array_type=array_type))
    want = NEW_AXES[name](da.from_array(VALUES, chunks=SERIES)).compute()
    for found in (x, x.map_blocks(np.copy)):
        np.testing.assert_array_equal(found.compute(), want, strict=True)
