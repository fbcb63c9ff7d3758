"""`from_b2nd`: chunks, constants, names, and the parts of the file that a computation reads."""

import pickle

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import StaleFrameError, UninitializedChunkError, from_b2nd, open_b2nd
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.frame.array import reference_of
from b2nd_dask.graph.read.blocks import ReadBlocks
from b2nd_dask.graph.tasks import compute_block
from tests.counting import bytes_read
from tests.graph.pushdown import calls, elements_read


@pytest.fixture
def numbers(tmp_path):
    """A dense frame and its contents: 20 chunks, the edge ones cut."""
    values = np.random.default_rng(5).normal(size=(100, 60))
    path = tmp_path / "numbers.b2nd"
    blosc2.asarray(values, urlpath=str(path), chunks=(24, 17), blocks=(10, 5))
    return path, values


@pytest.fixture
def mostly_special(tmp_path):
    """Zeros with one dense chunk and two that hold NaN."""
    path = str(tmp_path / "special.b2nd")
    array = blosc2.zeros((80, 80), dtype="f8", chunks=(16, 16), blocks=(8, 8), urlpath=path)
    array[16:32, 16:32] = np.arange(256.0).reshape(16, 16)
    array[48:, 48:64] = np.nan
    return path, array[...]


def test_import_sets_from_b2nd_in_dask_array():
    assert da.from_b2nd is b2nd_dask.from_b2nd


@pytest.mark.parametrize(
    "chunks",
    [None, "auto", 7, (50, 60), {0: 24, 1: "auto"}, ((10, 90), (59, 1)), -1, (30, "auto"), "1 KiB"],
)
def test_any_chunks_give_the_same_array(numbers, chunks):
    path, values = numbers
    x = from_b2nd(path, chunks=chunks)
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)
    assert x.dtype == values.dtype


@pytest.mark.parametrize(
    ("chunks", "what"),
    [(0, "0 of the 40"), ((5, 0), "of the 30"), ({0: -2}, "-2 of the 40"), (("auto", 0), "axis 1")],
)
def test_blocks_without_elements_are_refused(chunks, what):
    frame = blosc2.zeros((40, 30), dtype="i4", chunks=(16, 16))
    with pytest.raises(ValueError, match=f"a block cannot have .*{what}"):
        from_b2nd(frame, chunks=chunks)
    # an empty axis has one block in any case
    empty = blosc2.zeros((0, 30), dtype="i4")
    assert from_b2nd(empty, chunks=(0, 30)).chunks == ((0,), (30,))


def test_default_chunks_are_the_frames(numbers):
    assert from_b2nd(numbers[0]).chunks == ((24, 24, 24, 24, 4), (17, 17, 17, 9))


def test_auto_chunks_are_whole_frame_chunks(numbers):
    with dask.config.set({"array.chunk-size": "20 KiB"}):
        x = from_b2nd(numbers[0], chunks="auto")
    assert x.numblocks != (1, 1)
    assert all(size % 24 == 0 for size in x.chunks[0][:-1])
    assert all(size % 17 == 0 for size in x.chunks[1][:-1])


def test_one_task_for_each_frame_chunk_after_fusion(numbers):
    x = from_b2nd(numbers[0])
    (optimised,) = dask.optimize(x + 1)
    assert len(dict(optimised.dask)) == 20


def test_building_the_graph_reads_no_chunk(tmp_path):
    values = np.random.default_rng(0).normal(size=(64, 4096))
    path = str(tmp_path / "big.b2nd")
    blosc2.asarray(values, urlpath=path, chunks=(1, 4096), blocks=(1, 4096))
    nbytes, x = bytes_read(lambda: from_b2nd(path))
    assert nbytes < 70_000 < values.nbytes
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_a_slice_reads_the_chunks_it_touches(tmp_path):
    values = np.random.default_rng(0).normal(size=(64, 8192))
    path = str(tmp_path / "rows.b2nd")
    array = blosc2.asarray(values, urlpath=path, chunks=(1, 8192), blocks=(1, 8192))
    chunk = array.schunk.cbytes / 64
    x = from_b2nd(path)
    for selection in (x[5], x[5:6], (x * 2)[5], x[5, 10:20]):
        nbytes, _ = bytes_read(lambda s=selection: s.compute(scheduler="sync"))
        assert chunk * 0.5 < nbytes < chunk * 1.5


def test_the_slice_is_in_the_optimised_read_task(numbers):
    """One task reads and slices a block: it reads the slice, not the whole chunk."""
    row = from_b2nd(numbers[0])[5]
    (optimised,) = dask.optimize(row)
    graph = dict(optimised.dask)
    assert len(graph) == 4
    assert all(calls(task, compute_block) for task in graph.values())
    assert elements_read(row) == 60


def test_a_task_with_a_second_name_keeps_both_where_both_are_asked_for(numbers):
    path, values = numbers
    x = from_b2nd(path)
    names = [x.name, x[5].name]
    part, whole = dask.compute(x[5], x, scheduler="sync")
    np.testing.assert_array_equal(part, values[5])
    np.testing.assert_array_equal(whole, values)
    for optimised, name in zip(dask.optimize(x, x[5]), names, strict=True):
        assert optimised.name == name
        assert set(dask.core.flatten(optimised.__dask_keys__())) <= optimised.dask.keys()


def test_special_chunks_are_never_read(mostly_special):
    path, values = mostly_special
    x = from_b2nd(path)
    specials = x.blocks[2:, :3]
    nbytes, result = bytes_read(lambda: specials.sum().compute(scheduler="sync"))
    assert nbytes == 0
    assert result == 0
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def strides_by_block(path):
    """Blocks for work that is known only to read them."""
    x = from_b2nd(path)
    reads = ReadBlocks.whole(reference_of(open_b2nd(path)), x.chunks)
    seen = np.zeros(x.numblocks, int)
    for block in np.ndindex(*x.numblocks):
        seen[block] = sum(reads[block].elements().strides)
    return seen


def test_special_blocks_hold_one_item_of_memory(mostly_special):
    seen = strides_by_block(mostly_special[0])
    assert seen[1, 1] > 0  # the dense one
    assert seen[0, 0] == seen[4, 4] == 0


def test_a_repeated_value_is_known_from_the_chunk_header(tmp_path):
    path = str(tmp_path / "full.b2nd")
    blosc2.full((4000, 1000), 7.5, chunks=(1000, 1000), blocks=(100, 1000), urlpath=path)
    x = from_b2nd(path)
    assert (strides_by_block(path) == 0).all()
    nbytes, total = bytes_read(lambda: x.sum().compute(scheduler="sync"))
    assert total == 7.5 * x.size
    assert nbytes == 4 * 40


def test_kinds_seen_by_unaligned_and_coarse_blocks(mostly_special):
    path, values = mostly_special
    for chunks in (7, 16, 32, 80, ((5, 75), (70, 10))):
        x = from_b2nd(path, chunks=chunks)
        np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_nan_and_uninit_chunks(tmp_path):
    nans = blosc2.nans((40, 30), dtype="f4", chunks=(16, 16), blocks=(8, 8))
    assert np.isnan(from_b2nd(nans).compute(scheduler="sync")).all()
    path = str(tmp_path / "uninit.b2nd")
    blosc2.uninit((40, 30), dtype="i4", chunks=(16, 16), blocks=(8, 8), urlpath=path)
    assert (from_b2nd(path) == 0).all().compute(scheduler="sync")
    assert (from_b2nd(path, uninit=-3) == -3).all().compute(scheduler="sync")
    assert (from_b2nd(path, uninit=7.0) == 7).all().compute(scheduler="sync")
    with pytest.raises(UninitializedChunkError, match=r"uninit\.b2nd: chunk \d: it was"):
        from_b2nd(path, uninit="raise").compute(scheduler="sync")
    for wrong in ("nothing", 0.5, np.float32(-1e-3), np.int64(2**32), 2**32, np.float64(np.nan)):
        with pytest.raises(ValueError, match="not a value of dtype int32"):
            from_b2nd(path, uninit=wrong)


def test_names_follow_content_and_arguments(numbers):
    path, values = numbers
    x = from_b2nd(path)
    assert x.name == from_b2nd(path).name
    assert x.name != from_b2nd(path, chunks=10).name
    assert from_b2nd(path, name="mine").name == "mine"
    blosc2.asarray(values + 1, urlpath=str(path), chunks=(24, 17), blocks=(10, 5), mode="w")
    assert x.name != from_b2nd(path).name


def test_values_that_look_equal_get_names_of_their_own(tmp_path):
    path = str(tmp_path / "uninit.b2nd")
    blosc2.uninit((4,), dtype="f8", chunks=(2,), blocks=(1,), urlpath=path)
    fills = np.array(0.1234567890), np.array(0.1234567891)
    assert repr(fills[0]) == repr(fills[1])
    got = dask.compute(*(from_b2nd(path, uninit=fill)[0] for fill in fills), scheduler="sync")
    assert got == fills


def test_graph_travels_small(tmp_path):
    path = str(tmp_path / "many.b2nd")
    blosc2.zeros((200_000,), dtype="f8", chunks=(10,), blocks=(10,), urlpath=path)
    x = from_b2nd(path)
    assert x.npartitions == 20_000
    (blocks,) = [
        part for part in x.dask.layers[x.name].io_deps.values() if isinstance(part, ReadBlocks)
    ]
    state = {name: value for name, value in blocks.__getstate__().items() if name != "chunks"}
    assert len(pickle.dumps(state)) < 4000
    again = pickle.loads(pickle.dumps(blocks))
    assert again[(7,)].elements().tolist() == [0.0] * 10


@pytest.mark.parametrize("rewrite", ["replace", "in place", "remove"])
def test_a_changed_file_is_noticed(numbers, rewrite):
    path, values = numbers
    x, frame = from_b2nd(path), open_b2nd(path)
    x.sum().compute(scheduler="sync")
    if rewrite == "in place":
        array = blosc2.open(str(path), mode="a")
        array[3, 3] = 1e9
        expected = StaleFrameError
    else:
        path.unlink()
        expected = FileNotFoundError
        if rewrite == "replace":
            blosc2.asarray(values + 1, urlpath=str(path), chunks=(24, 17), blocks=(10, 5))
            expected = StaleFrameError
    with pytest.raises(expected, match=str(path)):
        x.compute(scheduler="sync")
    with pytest.raises(expected, match=str(path)):
        frame[0]


def test_constant_blocks_notice_a_change_too(tmp_path):
    path = str(tmp_path / "zeros.b2nd")
    array = blosc2.zeros((20, 20), chunks=(10, 10), urlpath=path)
    x = from_b2nd(path)
    array[:] = np.ones((20, 20))
    with pytest.raises(StaleFrameError, match=r"zeros\.b2nd"):
        x.sum().compute(scheduler="sync")


def test_numpy_integers_and_empty_tuples_index(numbers):
    path, values = numbers
    frame = open_b2nd(path)
    np.testing.assert_array_equal(frame[np.int64(3)], values[3])
    zeros = open_b2nd(blosc2.zeros((4, 4)))[()]
    zeros[0] = 1
    assert zeros.flags.writeable


def test_zero_dimensional_and_empty_arrays(tmp_path):
    assert from_b2nd(blosc2.asarray(np.array(7))).compute(scheduler="sync") == 7
    for shape in [(0,), (0, 5), (3, 0, 2)]:
        x = from_b2nd(blosc2.asarray(np.zeros(shape, "i4")))
        assert x.shape == shape
        assert x.compute(scheduler="sync").shape == shape


def test_compute_gives_arrays_of_ones_own(mostly_special):
    x = from_b2nd(mostly_special[0])
    for result in (x.compute(scheduler="sync"), x.blocks[3, 3].compute(scheduler="sync")):
        result[0] = 1
        assert result.flags.writeable


def test_chunk_kinds(mostly_special):
    kinds = open_b2nd(mostly_special[0]).chunk_kinds()
    assert kinds.shape == (5, 5)
    assert (kinds == ChunkKind.ZEROS).sum() == 22
    assert kinds[1, 1] == ChunkKind.STORED


def test_very_many_blocks_are_warned_of_once(tmp_path):
    path = str(tmp_path / "many.b2nd")
    blosc2.zeros(400_001, chunks=(4,), blocks=(4,), urlpath=path)
    with pytest.warns(UserWarning, match='100001 blocks.*chunks="auto"') as caught:
        from_b2nd(path)
    assert [warning.filename for warning in caught] == [__file__]
    assert from_b2nd(path, chunks="auto").sum().compute() == 0


def test_blocks_that_take_much_longer_are_warned_of(tmp_path):
    path = str(tmp_path / "maps.b2nd")
    # chunks of one value that are stored with data need little space
    sizes = {"chunks": (1, 512, 512), "blocks": (1, 512, 512)}
    blosc2.full((400, 512, 512), 1, dtype="f4", urlpath=path, **sizes)
    with pytest.warns(UserWarning, match=r"64 times as long.*rechunk") as caught:
        x = from_b2nd(path, chunks=(400, 8, 512))
    assert [warning.filename for warning in caught] == [__file__]
    assert x[:, 3, 3].sum().compute() == 400
    from_b2nd(path, chunks=(40, 512, 512))
    from_b2nd(path, chunks=(400, 256, 512))
    with pytest.warns(UserWarning, match=r"2 frames from .* 64 times as long") as caught:
        from_b2nd([path, path], chunks=(400, 8, 512))
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r"2 frames from .* 64 times as long"):
        from_b2nd([path, path], chunks=(2, 400, 8, 512), stack=True)
    from_b2nd([path, path], chunks=(40, 512, 512))


def test_an_opened_frame_is_read_as_it_was_opened(tmp_path):
    path = str(tmp_path / "part.b2nd")
    blosc2.uninit((40, 30), dtype="f8", chunks=(10, 30), urlpath=path)[:10] = 1
    frame = open_b2nd(path, uninit=7)
    x = from_b2nd(frame, chunks=(20, 30), name="part")
    assert (x.chunks, x.name) == (((20, 20), (30,)), "part")
    assert from_b2nd(frame).name == from_b2nd(path, uninit=7).name
    np.testing.assert_array_equal(x[:, 0].compute(), [1.0] * 10 + [7.0] * 30)
    for given in ({"uninit": 0}, {"verify": False}, {"dtype": "f8"}, {"offset": 1}):
        with pytest.raises(ValueError, match="read as it was opened"):
            from_b2nd(frame, **given)
