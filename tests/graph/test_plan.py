"""`plan` estimates the cost of a computation: compared with the calls of readers and decoders."""

import threading
import tracemalloc

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import Plan, create, from_b2nd, open_b2nd, plan, rechunk, to_b2nd
from b2nd_dask.frame.read import buffers, decode
from b2nd_dask.graph import tasks
from tests.counting import bytes_read
from tests.edges.display.pages import Page
from tests.strategies import examples

#: Rounded, so that blocks compress about equally.
VALUES = np.round(np.random.default_rng(1).normal(size=(24, 200, 240)), 2).astype("f4")
MIB = 1 << 20


@pytest.fixture(scope="module")
def cube(tmp_path_factory):
    """Chunks of 768 kB in 40 blocks, of which a tenth is zeros."""
    path = tmp_path_factory.mktemp("plan") / "cube.b2nd"
    values = VALUES.copy()
    values[:4, :, :120] = 0
    to_b2nd(values, path, chunks=(4, 200, 120), blocks=(1, 40, 60))
    return path


@pytest.fixture
def decoded(monkeypatch):
    """Bytes of each piece that is decoded."""
    found = []
    real = decode.decode_chunk

    def counting(data, header, out):
        found.append(header.nbytes)
        return real(data, header, out)

    monkeypatch.setattr(decode, "decode_chunk", counting)
    # fetched bytes are counted in one thread
    monkeypatch.setattr(tasks, "own_threads", lambda: 1)
    return found


def close(planned, real):
    return abs(planned - real) <= 0.1 * real


def check(x, decoded):
    """The estimate is within 10 % of the computation."""
    found = plan(x)
    decoded.clear()
    ran = []
    with dask.config.set(scheduler="sync"), Callback(posttask=lambda key, *_: ran.append(key)):
        fetched, _ = bytes_read(lambda: dask.compute(x))
    assert close(found.fetch_nbytes, fetched), (found, fetched)
    assert found.decode_nbytes == sum(decoded)
    # and one that joins the blocks
    assert len(ran) - 1 <= found.tasks <= len(ran)
    return found


CASES = {
    "whole": lambda x: x,
    "elementwise": lambda x: x * 2 + 1,
    "slice": lambda x: x[3:9, 20:90, 100:140],
    "strided": lambda x: (x + 1)[::3, ::50],
    "plane": lambda x: x[:, :, 30],
    "point": lambda x: x[7, 100, 200],
    "list": lambda x: x[:, [3, 190, 5]],
    "points": lambda x: x.vindex[[8, 9, 9], [3, 150, 3], [150, 220, 151]],
    "sum": lambda x: x.sum(),
    "mean of a part": lambda x: (x[5:17] * 2).mean(axis=0),
    "extreme": lambda x: x[:, 40:80].argmax(axis=0),
    "series": lambda x: x.rechunk((24, 40, 60)),
    "median": lambda x: da.median(x[:4], axis=0),
    "sorted": lambda x: x.map_blocks(np.sort)[:2],
    "read twice": lambda x: x - x.mean(axis=0),
}


@pytest.mark.parametrize("name", CASES)
def test_reads(cube, decoded, name):
    check(CASES[name](from_b2nd(cube)), decoded)


@pytest.mark.parametrize(
    "make",
    [lambda row, column: row + column, lambda row, column: (row * 2 + column).sum()],
    ids=["sum", "reduced"],
)
def test_reads_beside_a_block_that_another_task_reads(tmp_path, decoded, make):
    """A row in one block is read once for all blocks of a column; it is their first argument."""
    to_b2nd(VALUES[0, 0], tmp_path / "row.b2nd", chunks=(60,), blocks=(20,))
    to_b2nd(VALUES[0, :, :1], tmp_path / "column.b2nd", chunks=(50, 1), blocks=(10, 1))
    row = from_b2nd(tmp_path / "row.b2nd", chunks=-1)
    found = check(make(row, from_b2nd(tmp_path / "column.b2nd")), decoded)
    assert sorted(frame.reads for frame in found.frames) == [1, 4]


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Three concatenated frames, in blocks that cross frames."""
    folder = tmp_path_factory.mktemp("days")
    for number, rows in enumerate([9, 8, 7]):
        values = VALUES[number : number + rows]
        to_b2nd(values, folder / f"{number}.b2nd", chunks=(4, 200, 120), blocks=(2, 40, 60))
    return [folder / f"{number}.b2nd" for number in range(3)]


JOINED = {
    **CASES,
    "over an edge": lambda x: x[5:17],
    "large blocks": lambda x: x.rechunk((24, 100, 120)) + 1,
    "index over edges": lambda x: x[[1, 8, 9, 20]],
}


@pytest.mark.parametrize("name", JOINED)
def test_reads_of_joined_frames(days, decoded, name):
    check(JOINED[name](from_b2nd(days)), decoded)


@pytest.mark.parametrize("options", [{}, {"inline_array": True}, {"fancy": False}])
def test_reads_of_frames_in_from_array(cube, options):
    x = da.from_array(open_b2nd(cube), chunks=open_b2nd(cube).chunks, **options)
    ours = from_b2nd(cube)
    for of in (lambda a: a.sum(), lambda a: a[1], lambda a: a + 1):
        expected, found = plan(of(ours)), plan(of(x))
        assert [read.path for read in found.frames] == [read.path for read in expected.frames]
        # dask reads whole blocks for some slices
        assert found.decode_nbytes >= expected.decode_nbytes > 0


@pytest.mark.parametrize("name", ["plain", "index", "point", "list", "points", "sum", "extreme"])
def test_reads_of_stacked_frames(cube, tmp_path, decoded, name):
    to_b2nd(VALUES, tmp_path / "other.b2nd", chunks=(4, 200, 120), blocks=(2, 40, 60))
    x = from_b2nd([cube, tmp_path / "other.b2nd"], stack=True)
    made = {
        "plain": x,
        "index": x[1, 3:5],
        "point": x[1, 3, 5, 7],
        "list": x[:, [1, 20], 7],
        "points": x.vindex[[0, 1, 1], [3, 3, 3], [8, 9, 100], [200, 210, 201]],
        "sum": x.sum(axis=0),
        "extreme": x.argmax(axis=1),
    }[name]
    check(made, decoded)


def test_joined_frames_without_the_optimizer(days, decoded):
    with dask.config.set({"b2nd_dask.optimize": False}):
        check((from_b2nd(days)[5:12] * 2).sum(), decoded)


@pytest.mark.parametrize("verify", [True, False])
def test_verified_reads(cube, decoded, verify):
    """Whole chunks are fetched to be verified, and few of their blocks decoded."""
    check(from_b2nd(cube, verify=verify)[:, :30, 100:130], decoded)


def test_points_in_blocks_that_do_not_divide_chunks(tmp_path, decoded):
    values = np.random.default_rng(1).normal(size=27000)
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(7000,), blocks=(6000,))
    x = from_b2nd(tmp_path / "x.b2nd")[[21000, 14000, 20500]]
    found = plan(x)
    x.compute(scheduler="sync")
    assert found.blocks == 3
    assert found.decode_nbytes == sum(decoded)


def test_special_chunks(cube, decoded):
    found = check(from_b2nd(cube).sum(), decoded)
    (frame,) = found.frames
    assert (frame.chunks, frame.visits, frame.constants) == (11, 11, 1)
    assert frame.blocks == 11 * 4 * 5 * 2
    assert frame.path == str(cube)
    nothing = check(from_b2nd(cube)[:4, :, :120].max(), decoded)
    assert (nothing.chunks, nothing.fetch_nbytes) == (0, 0)
    # partial results of one element
    assert nothing.peak_nbytes <= 6 * 4


def test_frame_of_zeros(tmp_path):
    to_b2nd(da.zeros((10**5, 10**5), chunks=(10**4, 10**4)), tmp_path / "zeros.b2nd", chunks=1000)
    found = plan(from_b2nd(tmp_path / "zeros.b2nd", chunks=10**4).sum())
    assert (found.constants, found.chunks, found.fetch_nbytes) == (10**4, 0, 0)


def test_sparse_frame_and_memory(cube, tmp_path, decoded):
    to_b2nd(from_b2nd(cube), tmp_path / "sparse.b2nd", contiguous=False)
    check(from_b2nd(tmp_path / "sparse.b2nd")[:, 20:60], decoded)
    found = plan(from_b2nd(cube.read_bytes())[:, 20:60])
    assert found.decode_nbytes == plan(from_b2nd(cube)[:, 20:60]).decode_nbytes


def test_many_frames(cube, tmp_path, decoded):
    to_b2nd(VALUES, tmp_path / "other.b2nd", chunks=(4, 200, 120))
    x, y = from_b2nd(cube), from_b2nd(tmp_path / "other.b2nd")
    found = check((x + y).sum(), decoded)
    assert {frame.path for frame in found.frames} == {str(cube), str(tmp_path / "other.b2nd")}
    both = plan(x.sum(), y.sum())
    assert both.fetch_nbytes == found.fetch_nbytes
    # blocks that several collections need are read once
    assert plan(x, x).chunks == plan(x).chunks == 11
    assert plan(x, x).reads == plan(x).reads


def test_writes(cube, tmp_path, decoded):
    target = tmp_path / "target.b2nd"
    made = to_b2nd(
        from_b2nd(cube) * 2, target, chunks=(8, 100, 120), blocks=(4, 50, 60), compute=False
    )
    found = plan(made)
    (written,) = found.targets
    assert (written.path, written.shape) == (str(target), VALUES.shape)
    assert (written.chunk_shape, written.block_shape) == ((8, 100, 120), (4, 50, 60))
    assert written.chunks == 12
    assert not target.exists()
    decoded.clear()
    assert found.decode_nbytes > 0
    made.compute(scheduler="sync")
    assert sum(decoded) == found.decode_nbytes
    array = open_b2nd(target)
    assert (written.chunk_shape, written.block_shape) == (array.chunks, array.blocks)
    assert written.chunks == array.nchunks
    assert found.writing_tasks > 0


def test_regions(cube, tmp_path, decoded):
    target = tmp_path / "target.b2nd"
    to_b2nd(VALUES, target, chunks=(8, 100, 120))
    region = (slice(3, 9), slice(None), slice(120))
    made = to_b2nd(from_b2nd(cube)[:6, :, :120], target, mode="r+", region=region, compute=False)
    found = plan(made)
    assert [frame.path for frame in found.frames].count(str(cube)) == 1
    assert {frame.path for frame in found.frames} == {str(cube), str(target)}
    assert [written.path for written in found.targets] == [str(target)]
    decoded.clear()
    made.compute(scheduler="sync")
    assert sum(decoded) == found.decode_nbytes


def test_parts(cube, tmp_path, decoded):
    """A part of a frame that several jobs stage."""
    target = tmp_path / "begun.b2nd"
    create(target, VALUES.shape, "f4", chunks=(4, 200, 120))
    x = from_b2nd(cube)[4:12]
    made = to_b2nd(x, target, mode="stage", region=slice(4, 12), compute=False)
    found = check(made, decoded)
    assert [(t.path, t.shape) for t in found.targets] == [(str(target), VALUES.shape)]
    plain = plan(to_b2nd(x, tmp_path / "t.b2nd", chunks=(4, 200, 120), compute=False))
    assert found.peak_nbytes == plain.peak_nbytes > 0


def test_chunks_at_the_edge(tmp_path, decoded):
    # some of their blocks have all elements, but the others are verified, too
    to_b2nd(
        VALUES[:6],
        tmp_path / "edge.b2nd",
        chunks=(5, 200, 240),
        blocks=(1, 40, 60),
        cparams={"clevel": 0},
    )
    x = from_b2nd(tmp_path / "edge.b2nd")
    for y in (x, x[5:].sum(), x[4:, :50]):
        check(y, decoded)
    check(from_b2nd(tmp_path / "edge.b2nd", verify=False) * 2, decoded)


def test_rechunk_in_one_pass(cube, tmp_path, decoded):
    target = tmp_path / "series.b2nd"
    found = check(rechunk(cube, target, chunks=(24, 40, 60), compute=False), decoded)
    (written,) = found.targets
    assert (written.path, written.chunk_shape) == (str(target), (24, 40, 60))
    assert found.writing_tasks > 0
    assert not written.is_intermediate
    # a transpose reads the frame in another order of axes
    x = from_b2nd(cube)
    check(to_b2nd(x.T, tmp_path / "t.b2nd", max_mem="1GB", chunks=60, compute=False), decoded)


def test_rechunk_that_copies(cube, tmp_path, decoded):
    found = check(
        rechunk(cube, tmp_path / "copy.b2nd", chunks=(4, 200, 120), compute=False), decoded
    )
    assert (found.chunks, found.constants, found.decode_nbytes) == (11, 1, 0)
    assert found.peak_nbytes > found.fetch_nbytes
    assert [target.path for target in found.targets] == [str(tmp_path / "copy.b2nd")]


#: Bytes that do not compress, so that intermediate frames are as long as their elements.
NOISE = np.random.default_rng(0).integers(0, 256, (320, 96, 100), "u1")
THROUGH = {
    "two passes": lambda x, to: rechunk(
        x, to, chunks=(320, 5, 10), blocks=(320, 1, 10), max_mem="24MB", compute=False
    ),
    "reshaped": lambda x, to: to_b2nd(
        from_b2nd(x).reshape(320, 9600), to, chunks=(320, 960), max_mem="1GB", compute=False
    ),
    "computed, then rechunked": lambda x, to: to_b2nd(
        (from_b2nd(x) + 1).rechunk((320, 8, 100)), to, max_mem="1GB", compute=False
    ),
    "rechunked, then computed": lambda x, to: to_b2nd(
        from_b2nd(x).T.rechunk((10, 96, 320)) + 1, to, max_mem="1GB", compute=False
    ),
}


@pytest.mark.parametrize("name", THROUGH)
def test_rechunk_through_other_frames(tmp_path, decoded, name):
    source, target = tmp_path / "noise.b2nd", tmp_path / "target.b2nd"
    to_b2nd(NOISE, source, chunks=(1, 96, 100), blocks=(1, 96, 100))
    made = THROUGH[name](source, target)
    found = plan(made)
    decoded.clear()
    fetched, _ = bytes_read(lambda: made.compute(scheduler="sync"))
    assert found.decode_nbytes == sum(decoded)
    assert close(found.fetch_nbytes, fetched), (found, fetched)
    assert str(source) in [frame.path for frame in found.frames]
    between = {frame.path for frame in found.frames if frame.is_intermediate}
    assert between == {written.path for written in found.targets if written.is_intermediate}
    assert [written.path for written in found.targets if not written.is_intermediate] == [
        str(target)
    ]
    assert ("counted as uncompressed" in str(found)) == bool(between)


def test_xarray(cube):
    labelled = xr.Dataset({"a": (("t", "y", "x"), from_b2nd(cube)), "b": ("t", np.arange(24))})
    assert plan(labelled.mean("t")).chunks == 11


def test_without_the_optimizer(cube, decoded):
    x = from_b2nd(cube)
    with dask.config.set({"b2nd_dask.optimize": False}):
        check((x * 2).sum(), decoded)
        check(x[:5] + 1, decoded)


@given(st.data())
@examples(10)
def test_any_selection(data):
    shape = data.draw(st.lists(st.integers(1, 30), min_size=0, max_size=3))
    chunks = [data.draw(st.integers(1, n)) for n in shape]
    blocks = [data.draw(st.integers(1, c)) for c in chunks]
    values = np.random.default_rng(0).integers(1, 1 << 62, shape)
    frame = (
        blosc2.asarray(values, chunks=chunks, blocks=blocks) if shape else blosc2.asarray(values)
    )
    x = from_b2nd(frame.to_cframe())
    index = tuple(
        slice(start, data.draw(st.integers(start, n)), data.draw(st.integers(1, 4)))
        for n in shape
        for start in [data.draw(st.integers(0, n - 1))]
    )
    found = []
    with pytest.MonkeyPatch.context() as patch:
        real = decode.decode_chunk
        patch.setattr(
            decode,
            "decode_chunk",
            lambda data, header, out: (found.append(header.nbytes), real(data, header, out)),
        )
        planned = plan(x[index])
        x[index].compute(scheduler="sync")
    assert planned.decode_nbytes == sum(found)


def peak(function):
    """Peak of the bytes that a new thread, with new scratch buffers, allocates."""
    found = []

    def run():
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        function()
        found.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()

    thread = threading.Thread(target=run)
    # without a pool: memory that it already holds is not traced
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_MOST_POOLED", 0)
        thread.start()
        thread.join()
    return found[0]


PEAKS = {
    "read": lambda x: x,
    "twice": lambda x: x * 2,
    "reversed": lambda x: x[::-1] * 2,
    "chain": lambda x: np.sqrt(abs(x * 2 + 1)),
    "wider": lambda x: x.astype("f8"),
    "part": lambda x: x[:, :100, :90],
    "two reads": lambda x: x + x[::-1],
    "two chains": lambda x: (x + 1) * (x[::-1] - 1),
    "sorted": lambda x: (x * 2).map_blocks(np.sort),
    "sum": lambda x: x.sum(),
    "sum of a chain": lambda x: (x * 2 + 1).sum(),
    "sum with an array": lambda x: (x - da.from_array(np.ones(640, "f4"))).sum(),
}


def peak_of_tasks(x):
    """Peak of the bytes that the tasks of an array allocate, without the join of compute()."""
    (done,) = dask.optimize(x)
    (graph, keys) = dict(done.__dask_graph__()), done.__dask_keys__()
    # the first run imports modules
    dask.get(graph, keys)
    return peak(lambda: dask.get(graph, keys))


@pytest.mark.parametrize("name", PEAKS)
def test_peak_memory_of_a_task(tmp_path, name):
    values = np.round(np.random.default_rng(1).normal(size=(4, 640, 640)), 1).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(4, 640, 640), blocks=(1, 80, 640))
    x = PEAKS[name](from_b2nd(tmp_path / "x.b2nd"))
    planned = plan(x).peak_nbytes
    # with the copy that dask makes of a result of one block; a first run imports
    x.compute(scheduler="sync")
    real = peak(lambda: x.compute(scheduler="sync"))
    assert close(planned, real), (planned / MIB, real / MIB)


def test_peak_memory_of_a_read_as_long_as_a_padded_chunk(tmp_path):
    """A block has a chunk and a part of the next one: both are decoded into a scratch buffer."""
    values = np.round(np.random.default_rng(1).normal(size=2_000_000), 1).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=1_000_000, blocks=400_000)
    x = from_b2nd(tmp_path / "x.b2nd")[:1_200_000]
    planned, real = plan(x).peak_nbytes, peak_of_tasks(x)
    assert close(planned, real), (planned / MIB, real / MIB)


def test_peak_memory_of_a_read_of_parts_of_maps(tmp_path):
    """Chunks that divide maps are contiguous in the result, but not along its first axis."""
    values = (np.arange(2 * 640 * 640) // 500).reshape(2, 640, 640).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1, 320, 640), blocks=(1, 320, 640))
    x = from_b2nd(tmp_path / "x.b2nd")
    planned, real = plan(x).peak_nbytes, peak_of_tasks(x)
    assert close(planned, real), (planned / MIB, real / MIB)


@pytest.mark.parametrize("name", ["reversed", "transposed"])
def test_peak_memory_of_a_result_that_is_copied(tmp_path, name):
    values = np.round(np.random.default_rng(1).normal(size=(4, 640, 640)), 1).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(4, 640, 640), blocks=(1, 80, 640))
    x = from_b2nd(tmp_path / "x.b2nd")
    x = x[:, ::-1] if name == "reversed" else x.T
    planned = plan(x).peak_nbytes
    # the first run imports modules
    x.compute(scheduler="sync")
    real = peak(lambda: x.compute(scheduler="sync"))
    assert close(planned, real), (planned / MIB, real / MIB)


@pytest.mark.parametrize("blocks", [(1, 64, 64), (1, 16, 32)])
@pytest.mark.parametrize("axis", [None, 0, (1, 2)])
def test_peak_memory_of_a_reduction_of_small_chunks(tmp_path, blocks, axis):
    values = np.round(np.random.default_rng(1).normal(size=(500, 64, 64)), 1).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1, 64, 64), blocks=blocks)
    x = from_b2nd(tmp_path / "x.b2nd", chunks=-1).max(axis=axis)
    planned, real = plan(x).peak_nbytes, peak_of_tasks(x)
    assert close(planned, real), (planned / MIB, real / MIB)


def test_peak_memory_of_a_reduction_of_parts_of_chunks(tmp_path):
    values = np.round(np.random.default_rng(1).normal(size=(8, 1024, 1024)), 1).astype("f4")
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(1, 1024, 1024), blocks=(1, 32, 1024))
    x = from_b2nd(tmp_path / "x.b2nd", chunks=-1)[:, :256].max()
    planned, real = plan(x).peak_nbytes, peak_of_tasks(x)
    # far from the 4 MiB of a chunk; NumPy's buffers and objects count, too
    assert real < planned < 1.75 * real, (planned / MIB, real / MIB)


@pytest.mark.parametrize("chunks", [(4, 640, 640), (2, 320, 640)])
@pytest.mark.parametrize("factor", [None, 2])
def test_peak_memory_of_a_write(tmp_path, chunks, factor):
    values = np.round(np.random.default_rng(1).normal(size=(4, 640, 640)), 1).astype("f4")
    x = to_b2nd(values, tmp_path / "x.b2nd", chunks=(4, 640, 640), blocks=(1, 80, 640))
    made = [
        to_b2nd(x * factor if factor else x, tmp_path / name, chunks=chunks, compute=False)
        for name in ("first.b2nd", "second.b2nd")
    ]
    planned = plan(made[1]).peak_nbytes
    # the first run imports modules
    made[0].compute(scheduler="sync")
    real = peak(lambda: made[1].compute(scheduler="sync"))
    assert close(planned, real), (planned / MIB, real / MIB)


@pytest.mark.parametrize("stack", [False, True])
def test_peak_memory_of_partial_results(tmp_path, stack):
    """For a mean of maps they take more memory than the maps."""
    values = np.round(np.random.default_rng(1).normal(size=(24, 512, 512)), 1).astype("f4")
    to_b2nd(values, tmp_path / "a.b2nd", chunks=(1, 512, 512), blocks=(1, 64, 512))
    paths = [tmp_path / "a.b2nd"] * 2 if stack else tmp_path / "a.b2nd"
    x = from_b2nd(paths, chunks=-1, stack=stack).mean(axis=0)
    planned = plan(x).peak_nbytes
    real = peak_of_tasks(x)
    assert close(planned, real), (planned / MIB, real / MIB)


SLICES = {
    "slice": lambda x: x[3:21].T,
    "unaligned slice": lambda x: x[3:20, 7:, 5:190].rechunk((17, 50, 60)),
    "slice of a rechunk": lambda x: (x + 1).rechunk((24, 20, 60))[5:, :, 3:],
    "columns": lambda x: x[:, :, 7:100].rechunk((24, 50, 93)),
}


@pytest.mark.parametrize("name", SLICES)
def test_writes_of_slices(cube, tmp_path, decoded, name):
    x = from_b2nd(cube)
    found = check(
        to_b2nd(SLICES[name](x), tmp_path / "t.b2nd", max_mem="256MB", compute=False), decoded
    )
    assert [t.shape for t in found.targets if not t.is_intermediate] == [SLICES[name](x).shape]


@pytest.mark.parametrize("name", ["rechunk", "joined"])
def test_peak_memory_of_other_tasks(tmp_path, name):
    values = np.round(np.random.default_rng(1).normal(size=(8, 640, 320)), 1).astype("f4")
    paths = [tmp_path / "a.b2nd", tmp_path / "b.b2nd"]
    for path in paths:
        to_b2nd(values, path, chunks=(1, 640, 320), blocks=(1, 80, 320))

    def made(number):
        if name == "joined":
            return from_b2nd(paths, chunks=(16, 640, 320))
        target = tmp_path / f"{number}.b2nd"
        return rechunk(paths[0], target, chunks=(8, 640, 320), max_mem="1GB", compute=False)

    planned = plan(made(0)).peak_nbytes
    runs = [dask.optimize(made(number))[0] for number in range(2)]
    graphs = [(dict(run.__dask_graph__()), run.__dask_keys__()) for run in runs]
    # the first run imports modules
    dask.get(*graphs[0])
    real = peak(lambda: dask.get(*graphs[1]))
    # the region of a pass has its own pages, which are not traced
    real += values.nbytes if name == "rechunk" else 0
    assert close(planned, real), (planned / MIB, real / MIB)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: da.nonzero(x)[0],
        da.argwhere,
        lambda x: x[x > 3],
        lambda x: x.cumsum(axis=0),
        lambda x: (x - x.mean()).std(axis=1),
        lambda x: x.reshape(-1)[::7],
    ],
    ids=["nonzero", "argwhere", "mask", "cumsum", "std", "reshape"],
)
def test_as_many_tasks_as_run(tmp_path, make, on):
    to_b2nd(np.arange(4000.0).reshape(40, 100) % 7, tmp_path / "a.b2nd", chunks=(10, 25))
    x = make(from_b2nd(tmp_path / "a.b2nd"))
    with dask.config.set({"b2nd_dask.optimize": on}):
        run = []
        with Callback(posttask=lambda key, *_: run.append(key)):
            x.compute(scheduler="sync")
        assert plan(x).tasks == len(run)


def test_text_and_html(cube, tmp_path):
    path = tmp_path / "<b>&.b2nd"
    path.write_bytes(cube.read_bytes())
    found = plan(to_b2nd(from_b2nd(path), tmp_path / "t<i>.b2nd", compute=False))
    assert isinstance(found, Plan)
    text = str(found)
    assert repr(found) == text
    for part in (str(path), "24 x 200 x 240 float32", "constants", "1, not read", "t<i>.b2nd"):
        assert part in text
    page = Page(found._repr_html_())
    shown = "".join(page.texts)
    # names of files are texts, not tags
    assert str(path) in shown
    assert "t<i>.b2nd" in shown
    assert "i" not in [tag for tag, _ in page.tags]
    assert ["constants", "1, not read"] in page.rows


def test_many_frames_are_shown_as_one(tmp_path):
    for number in range(12):
        part = VALUES[number : number + 1, :40, :60]
        to_b2nd(part, tmp_path / f"{number:02}.b2nd", chunks=(1, 20, 60), blocks=(1, 20, 20))
    few, many = (plan(from_b2nd(f"{tmp_path}/{pattern}.b2nd")) for pattern in ("0*", "*"))
    assert len(few.frames) == 10
    assert len(many.frames) == 12
    for text in (str(few), few._repr_html_()):
        assert all(frame.path in text for frame in few.frames)
    title = f"reads 12 frames, from {tmp_path / '00.b2nd'} to {tmp_path / '11.b2nd'}"
    for text in (str(many), many._repr_html_()):
        assert title in text
        assert "05.b2nd" not in text
        assert "1 x 40 x 60 float32" in text
    lines = str(many).split(title)[1].splitlines()
    assert [line.split() for line in lines if "chunks read" in line] == [["chunks", "read", "24"]]
    assert any(f"{many.blocks:,} of 1.6 kB" in line for line in lines)
    assert many.blocks == 72


@pytest.mark.parametrize("wrong", [VALUES, "x.b2nd", None])
def test_what_is_no_collection(wrong):
    with pytest.raises(TypeError, match=r"argument 0 is a \w+, not a dask collection"):
        plan(wrong)


def test_an_array_of_other_sources():
    shown = repr(plan(da.ones((8, 8), chunks=4) + 1))
    assert "none is read; the cost of other sources is unknown" in shown
    assert "bytes" not in shown


def test_empty_frames_of_python_blosc2(tmp_path):
    path = tmp_path / "empty.b2nd"
    blosc2.zeros((0, 5), np.float32, urlpath=str(path))
    assert plan(from_b2nd(path).sum()).chunks == 0
