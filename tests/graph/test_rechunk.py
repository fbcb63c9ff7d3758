"""`rechunk`: any chunks to any others, compared with NumPy and python-blosc2."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import get_dependencies
from dask.threaded import get as threaded_get
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    ChecksumError,
    ChunkKind,
    CorruptChunkError,
    from_b2nd,
    list_staging,
    open_b2nd,
    rechunk,
    remove_staging,
    to_b2nd,
    verify,
)
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.rechunk import passes as passes_module
from b2nd_dask.frame.rechunk import work as work_module
from b2nd_dask.frame.write.transaction import begin
from b2nd_dask.frame.write.writer import StagedBatches
from b2nd_dask.graph.resources import nbytes_of
from b2nd_dask.graph.write.write_tasks import with_concurrency
from tests.forked import run_to_end
from tests.peak import peak_growth, write_maps
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers import S3Server


def values_of(shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


@pytest.fixture
def plans(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The planned passes, from the log."""
    caplog.set_level(logging.INFO, "b2nd_dask")
    return lambda: [text for text in caplog.messages if "decoded" in text]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a frame, and its new chunks."""
    ndim = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, (300, 24, 11, 6)[ndim - 1])) for _ in range(ndim)]
    chunks = [draw(st.integers(1, n + 1)) for n in shape]
    blocks = [draw(st.integers(1, c)) for c in chunks]
    wanted = [draw(st.integers(1, n + 1)) for n in shape]
    wanted_blocks = draw(st.none() | st.tuples(*(st.integers(1, c) for c in wanted)))
    fill = draw(st.sampled_from(["data", "some zeros", "zeros", "nan"]))
    return {
        "shape": tuple(shape),
        "chunks": tuple(chunks),
        "blocks": tuple(blocks),
        "wanted": tuple(wanted),
        "wanted_blocks": wanted_blocks,
        "fill": fill,
        "dtype": draw(st.sampled_from(["<f4", ">f8", "<f8"])),
        "contiguous": draw(st.booleans()),
        "passes": draw(st.integers(1, 3)),
    }


def array_for(case: dict[str, Any]) -> np.ndarray:
    values = values_of(case["shape"], case["dtype"])
    if case["fill"] == "zeros":
        values[...] = 0
    elif case["fill"] == "nan":
        values[...] = np.nan
    elif case["fill"] == "some zeros":
        values[: len(values) // 2 + 1] = 0
    return values


@examples(60)
@given(case=cases())
def test_any_chunks_to_any_others(case: dict[str, Any], fresh_path: Callable[[], Path]) -> None:
    source, target = fresh_path(), fresh_path()
    values = array_for(case)
    blosc2.asarray(values, urlpath=str(source), chunks=case["chunks"], blocks=case["blocks"])
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        if case["passes"] > 1:
            force_passes(patch, case["passes"])
        found = rechunk(
            source,
            target,
            chunks=case["wanted"],
            blocks=case["wanted_blocks"],
            contiguous=case["contiguous"],
        )
    written = blosc2.open(str(target), mode="r")
    assert written.chunks == case["wanted"]
    assert case["wanted_blocks"] in (None, written.blocks)
    np.testing.assert_array_equal(written[...], values)
    assert found.dtype == values.dtype
    assert verify(target).ok
    # no staged file stays
    assert not list(target.parent.glob(f".{target.name}*"))


def force_passes(patch: pytest.MonkeyPatch, number: int) -> None:
    """Plan a given number of passes if possible."""
    plain = passes_module._between

    def between(source, target, budget, count):  # type: ignore[no-untyped-def]
        return () if count else plain(source, target, budget, number - 1)

    patch.setattr(passes_module, "_between", between)


MAPS = values_of((96, 100, 200))
#: A pass that decodes each block once needs more.
LITTLE = "14MB"
SERIES = (96, 20, 20)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    path = tmp_path / "maps.b2nd"
    to_b2nd(
        MAPS,
        path,
        chunks=(1, 100, 200),
        blocks=(1, 100, 200),
        vlmeta={"units": "mm"},
        meta={"grid": [1, 2]},
        cparams={"codec": "lz4", "clevel": 3},
    )
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target" / "series.b2nd"


@pytest.fixture(autouse=True)
def _folder_and_threads(target: Path) -> Iterator[None]:
    target.parent.mkdir()
    # the memory is divided among them
    with dask.config.set(num_workers=2):
        yield


def left_over(target: Path) -> list[str]:
    return [path.name for path in target.parent.iterdir() if path != target]


def assert_is_maps(target: Path) -> None:
    np.testing.assert_array_equal(blosc2.open(str(target), mode="r")[...], MAPS)
    assert verify(target).ok
    assert left_over(target) == []


@pytest.mark.parametrize(
    "scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_with_little_memory_through_an_intermediate_frame(
    maps: Path, target: Path, scheduler: str, plans: Callable[[], list[str]]
) -> None:
    with dask.config.set(scheduler=scheduler):
        rechunk(maps, target, chunks=SERIES, max_mem=LITTLE)
    assert [text.partition(" reads")[0].partition(": ")[2] for text in plans()] == [
        "pass 1 of 2",
        "pass 2 of 2",
    ]
    assert_is_maps(target)


def test_one_pass_where_blocks_line_up(
    target: Path, plans: Callable[[], list[str]], tmp_path: Path
) -> None:
    blocks = tmp_path / "blocks.b2nd"
    to_b2nd(MAPS, blocks, chunks=(1, 100, 200), blocks=(1, 10, 20))
    rechunk(blocks, target, chunks=SERIES, max_mem="14MB")
    (plan,) = plans()
    assert "decoded 1.00 times" in plan
    assert_is_maps(target)


def test_what_is_not_asked_for_stays(maps: Path, target: Path) -> None:
    rechunk(maps, target, chunks=SERIES)
    old, new = open_b2nd(maps), open_b2nd(target)
    assert dict(new.vlmeta) == {"units": "mm"}
    assert dict(new.meta) == {"grid": [1, 2]}
    assert new.cparams == old.cparams
    rechunk(maps, target, chunks=SERIES, mode="w", meta={}, vlmeta=None, cparams={"clevel": 1})
    new = open_b2nd(target)
    assert (dict(new.vlmeta), dict(new.meta), new.cparams.clevel) == ({}, {}, 1)


@pytest.mark.parametrize("chunks", [{0: 5}, {-1: 3}, {0: None, 2: 4}, (5, None, 7), {}])
def test_axes_that_are_not_named_keep_their_chunks(maps: Path, target: Path, chunks: Any) -> None:
    frame = open_b2nd(maps)
    expected = da.zeros(frame.shape, chunks=frame.chunks).rechunk(chunks).chunksize
    assert rechunk(maps, target, chunks=chunks).chunksize == expected


@pytest.mark.parametrize("chunks", [{"time": 5}, {3: 5}, {-4: 5}, {0.0: 5}])
def test_axes_that_do_not_exist(maps: Path, target: Path, chunks: Any) -> None:
    x = from_b2nd(maps)
    for call in (
        lambda: rechunk(maps, target, chunks=chunks),
        lambda: to_b2nd(x, target, chunks=chunks),
        lambda: from_b2nd(maps, chunks=chunks),
    ):
        with pytest.raises(ValueError, match="not the number of one of 3 axes"):
            call()


@pytest.mark.parametrize("contiguous", [True, False])
def test_chunks_that_stay_are_copied(target: Path, contiguous: bool, tmp_path: Path) -> None:
    values = MAPS.copy()
    values[:9], values[9:12] = 0, np.nan
    values[12:15] = 7
    source = tmp_path / "source.b2nd"
    # python-blosc2 of another level: recompressed bytes would differ
    blosc2.asarray(values, urlpath=str(source), chunks=(3, 60, 150), blocks=(1, 30, 100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("b2nd_dask.frame.write.writer.encode_chunk", None)
        rechunk(source, target, chunks=(3, 60, 150), contiguous=contiguous)
    old, new = (blosc2.open(str(path), mode="r") for path in (source, target))
    assert new.blocks == old.blocks
    np.testing.assert_array_equal(new[...], values)
    assert verify(target).ok
    stored = np.flatnonzero(open_b2nd(source).chunk_kinds().reshape(-1) == ChunkKind.STORED)
    assert len(stored) > 100
    for chunk in stored.tolist():
        assert old.schunk.get_chunk(chunk) == new.schunk.get_chunk(chunk)
    kinds = open_b2nd(target).chunk_kinds()
    assert (kinds[:3] == ChunkKind.ZEROS).all()


@pytest.mark.parametrize("element", [0.0, np.nan, 2.5])
def test_regions_of_one_element(tmp_path: Path, target: Path, element: float) -> None:
    path = tmp_path / "constant.b2nd"
    to_b2nd(da.full((50, 50), element, chunks=(10, 10)), path)
    # the chunks at the edge are cut
    rechunk(path, target, chunks=(20, 15))
    np.testing.assert_array_equal(blosc2.open(str(target), mode="r")[...], element)
    assert verify(target).ok


def damage(path: Path) -> None:
    """Flip a bit in the data of a chunk in the middle."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 8
    path.write_bytes(raw)


@pytest.mark.parametrize("chunks", [SERIES, (1, 100, 200), (2, 100, 200)])
@pytest.mark.parametrize("max_mem", [LITTLE, "100MB"])
def test_damage_is_found(maps: Path, target: Path, chunks: Any, max_mem: str) -> None:
    damage(maps)
    with pytest.raises(ChecksumError, match=r"maps\.b2nd.*chunk \d"):
        rechunk(maps, target, chunks=chunks, max_mem=max_mem)
    assert list(target.parent.iterdir()) == []


@pytest.fixture
def read_in_parts(tmp_path: Path) -> Path:
    """A frame whose rechunk to (96, 4, 4) reads some blocks of a chunk at a time."""
    path = tmp_path / "blocks.b2nd"
    noise = np.random.default_rng(2).random((96, 100, 200))
    to_b2nd(noise, path, chunks=(1, 100, 200), blocks=(1, 20, 20), cparams={"clevel": 0})
    return path


def test_damage_that_reads_in_parts_do_not_see_is_found(read_in_parts: Path, target: Path) -> None:
    path = read_in_parts
    damage(path)
    assert not verify(path).ok
    with pytest.raises(ChecksumError):
        rechunk(path, target, chunks=(96, 4, 4), max_mem="14MB")
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path, target: rechunk(path, target, chunks=(1, 100, 200)),
        lambda path, target: to_b2nd(from_b2nd(path), target),
        lambda path, target: to_b2nd(from_b2nd(path).rechunk((1, 100, 200)), target),
        lambda path, target: to_b2nd(from_b2nd(path), target, max_mem="64MB"),
    ],
    ids=["rechunk", "to_b2nd", "rechunked by dask", "max_mem"],
)
def test_damage_is_found_at_the_edge(
    tmp_path: Path, target: Path, write: Callable[[Path, Path], Any]
) -> None:
    path = tmp_path / "edge.b2nd"
    noise = np.random.default_rng(2).random((7, 100, 200))
    to_b2nd(noise, path, chunks=(5, 100, 200), blocks=(1, 100, 200), cparams={"clevel": 0})
    raw = bytearray(path.read_bytes())
    raw[raw.index(noise[5, 50].tobytes())] ^= 8
    path.write_bytes(raw)
    with pytest.raises(ChecksumError, match=r"edge\.b2nd.*chunk 1\b"):
        write(path, target)
    assert list(target.parent.iterdir()) == []


def test_no_intermediate_frame_is_made_of_damaged_chunks(read_in_parts: Path, target: Path) -> None:
    # a resumed run would return the published frame
    damage(read_in_parts)
    with pytest.MonkeyPatch.context() as patch:
        # of a single region
        whole = lambda source, *_: [(Grid(source.shape, source.shape, source.shape, 4),)]  # noqa: E731
        patch.setattr(passes_module, "_between", whole)
        x = from_b2nd(read_in_parts)[:, 25:75]
        written = to_b2nd(x, target, chunks=(96, 9, 20), max_mem="400MB", compute=False)
    graph = dict(written.__dask_graph__())
    (published,) = {key for key in graph if str(key).startswith("commit(")} - {written.key}
    with pytest.raises(ChecksumError):
        threaded_get(graph, published)


def test_no_task_can_fail_before_the_staging_area_is_made(
    read_in_parts: Path, target: Path
) -> None:
    # an intermediate frame that starts during the clean-up of a failed write would stay
    written = rechunk(read_in_parts, target, chunks=(96, 4, 4), max_mem="20MB", compute=False)
    graph = dict(written.__dask_graph__())
    tasks = {key: task for key, task in graph.items() if type(task) is tuple}
    areas = {key for key, task in tasks.items() if task[0] is begin}
    reads = [key for key, task in tasks.items() if task[0] is work_module.rechunk_region]
    assert reads
    assert all(areas & get_dependencies(graph, key) for key in reads)


def test_the_frame_that_is_read_may_be_the_target(maps: Path) -> None:
    with pytest.raises(FileExistsError):
        rechunk(maps, maps, chunks=SERIES, max_mem=LITTLE)
    rechunk(maps, maps, chunks=SERIES, max_mem=LITTLE, mode="w")
    assert open_b2nd(maps).chunks == SERIES
    np.testing.assert_array_equal(blosc2.open(str(maps), mode="r")[...], MAPS)


def test_a_delayed_rechunk(maps: Path, target: Path) -> None:
    written = rechunk(maps, target, chunks=SERIES, max_mem=LITTLE, compute=False)
    assert list(target.parent.iterdir()) == []
    assert written.compute() == str(target)
    assert_is_maps(target)
    # as on a cluster that lost the worker with the result
    assert written.compute() == str(target)
    assert_is_maps(target)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_arrays_with_few_elements_or_none(tmp_path: Path, target: Path, shape: Any) -> None:
    path = tmp_path / "small.b2nd"
    to_b2nd(np.ones(shape), path)
    found = rechunk(path, target, chunks=tuple(2 for _ in shape))
    np.testing.assert_array_equal(found.compute(), np.ones(shape))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_mem": "1MB"}, ValueError, r"or more, which is the minimum"),
        ({"max_mem": "much"}, ValueError, r"max_mem='much' is not a positive number"),
        ({"max_mem": -1}, ValueError, r"not a positive number"),
        ({"max_mem": True}, TypeError, r"give a number of bytes or a text"),
        ({"max_mem": "1kB", "chunks": (1, 100, 200)}, ValueError, r"to copy chunks"),
        ({"chunks": (1, 2)}, ValueError, r"one for each of 3 axes"),
        (
            {"chunks": ((96,), (40, 60), (200,))},
            ValueError,
            r"lists \(40, 60\) along axis 1 of 100",
        ),
        ({"chunks": {2: (20, 0, 20)}}, ValueError, r"along axis 2.*give that size"),
        ({"chunks": 0}, ValueError, r"neither a size nor"),
        ({"blocks": (97, 5, 10)}, ValueError, r"larger than chunks"),
        ({"mode": "r+"}, ValueError, r"known are 'w-', 'w'"),
        ({"vlmeta": "all"}, ValueError, r"vlmeta='all'"),
    ],
)
def test_bad_arguments(
    maps: Path, target: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rechunk(maps, target, **({"chunks": SERIES} | arguments))
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        (((96,), (40, 40, 20), (100, 100)), (96, 40, 100)),
        ((-1, [30, 30, 30, 10], 20), (96, 30, 20)),
        ({1: (50, 50), 0: 7}, (7, 50, 200)),
        ("auto", (96, 100, 200)),
    ],
)
def test_chunks_as_dask_lists_them(
    maps: Path, target: Path, chunks: Any, found: tuple[int, ...]
) -> None:
    rechunk(maps, target, chunks=chunks, max_mem="200MB")
    assert open_b2nd(target).chunks == found


@pytest.mark.parametrize("kind", ["list", "pattern"])
def test_several_frames_are_an_error_that_says_how(maps: Path, target: Path, kind: str) -> None:
    source = [maps, maps] if kind == "list" else f"{maps.parent}/*.b2nd"
    with pytest.raises(ValueError, match=r"rechunk takes one: pass from_b2nd\(src\)"):
        rechunk(source, target, chunks=SERIES)


def test_the_least_memory_that_the_error_names_is_enough(maps: Path, target: Path) -> None:
    with pytest.raises(ValueError, match="which is the minimum") as raised:
        rechunk(maps, target, chunks=SERIES, max_mem="1MB")
    found = re.match(
        r'max_mem="1MB" is too little for new chunks .* of 154kB.* Pass max_mem="([\d.]+)MB" or',
        str(raised.value),
    )
    assert found, raised.value
    least = float(found[1])
    rechunk(maps, target, chunks=SERIES, max_mem=f"{least}MB", compute=False)
    with pytest.raises(ValueError, match="which is the minimum"):
        rechunk(maps, target, chunks=SERIES, max_mem=int(least * 0.9e6), compute=False)


def test_the_least_memory_is_enough_where_larger_batches_are_read_with_more(target: Path) -> None:
    source = "memory://least/source.b2nd"
    to_b2nd(da.zeros((4, 8 << 20), dtype="u1", chunks=(1, 8 << 20)), source, mode="w")
    wanted = {"chunks": (2, 4 << 20), "blocks": (1, 1 << 20), "compute": False}
    with pytest.raises(ValueError, match="which is the minimum") as raised:
        rechunk(source, target, max_mem="4MB", **wanted)
    _, least = re.findall(r'max_mem="([^"]+)"', str(raised.value))
    rechunk(source, target, max_mem=least, **wanted)


def killed_after(number: int, maps: Path, target: Path, chunks: Any) -> None:
    """Die during a rechunk, in the task after a number of finished ones."""
    done = []
    plain = StagedBatches.finish

    def counted(batches: StagedBatches) -> Any:
        done.append(1)
        records = plain(batches)
        if len(done) > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return records

    StagedBatches.finish = counted  # type: ignore[method-assign]
    with dask.config.set(scheduler="sync", num_workers=2):
        rechunk(maps, target, chunks=chunks, max_mem=LITTLE, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 10])
def test_a_killed_rechunk_goes_on(
    maps: Path, target: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    ended = run_to_end(killed_after, number, maps, target, SERIES)
    assert ended.code == -signal.SIGKILL, ended
    assert not target.exists()
    assert len(list_staging(target)) == 1
    read = []
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        plain = work_module.rechunk_region
        patch.setattr(
            "b2nd_dask.graph.write.rechunk.rechunk_region",
            lambda *arguments: read.append(arguments[1]) or plain(*arguments),
        )
        rechunk(maps, target, chunks=SERIES, max_mem=LITTLE, resume=True)
        again = len(read)
        assert_is_maps(target)
        rechunk(maps, target.with_name("other.b2nd"), chunks=SERIES, max_mem=LITTLE)
    assert again == len(read) - again - number


def test_a_killed_rechunk_can_be_given_up(maps: Path, target: Path) -> None:
    run_to_end(killed_after, 2, maps, target, SERIES)
    remove_staging(target)
    assert list(target.parent.iterdir()) == []


def test_a_failure_leaves_nothing(maps: Path, target: Path) -> None:
    rechunk(maps, target, chunks=(5, 5, 5))
    before = target.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_module, "write_block", None)
        with pytest.raises(TypeError):
            rechunk(maps, target, chunks=SERIES, max_mem=LITTLE, mode="w")
    assert target.read_bytes() == before
    assert left_over(target) == []


@pytest.mark.parametrize("chunks", [(1, 100, 200), SERIES])
def test_a_source_that_is_gone_is_named(tmp_path: Path, target: Path, chunks: Any) -> None:
    """The source is missing, not the target, whose folder exists."""
    source = tmp_path / "source.b2nd"
    to_b2nd(MAPS, source, chunks=(1, 100, 200))
    written = rechunk(source, target, chunks=chunks, compute=False)
    source.unlink()
    with pytest.raises(FileNotFoundError, match="the frame existed when it was opened") as caught:
        written.compute()
    assert caught.value.filename == str(source)
    assert "folder, with the staged files" not in str(caught.value)


def test_one_task_makes_the_staging_area(maps: Path, target: Path) -> None:
    # with several threads, a late one would make it again after another failed
    written = rechunk(maps, target, chunks=SERIES, max_mem=LITTLE, compute=False)
    opened = [
        task for task in dict(written.dask).values() if isinstance(task, tuple) and task[0] is begin
    ]
    assert len(opened) == 1


def test_between_objects_of_a_store(s3_server: S3Server, maps: Path) -> None:
    options = s3_server.storage_options
    s3_server.client.create_bucket(Bucket="rechunk")
    where = {"storage_options": options, "max_mem": "400MB", "chunks": SERIES}
    rechunk(maps, "s3://rechunk/one.b2nd", **where)
    with pytest.MonkeyPatch.context() as patch:
        force_passes(patch, 2)
        rechunk(
            "s3://rechunk/one.b2nd", "s3://rechunk/two.b2nd", **(where | {"chunks": (9, 9, 200)})
        )
        # a failure clears the store, too
        patch.setattr("b2nd_dask.frame.rechunk.work.frame_at", None)
        with pytest.raises(TypeError):
            rechunk("s3://rechunk/one.b2nd", "s3://rechunk/not.b2nd", **where | {"chunks": 20})
    found = open_b2nd("s3://rechunk/two.b2nd", storage_options=options)
    np.testing.assert_array_equal(found[...], MAPS)
    names = [entry["Key"] for entry in s3_server.client.list_objects(Bucket="rechunk")["Contents"]]
    assert sorted(names) == ["one.b2nd", "two.b2nd"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("chunks", [SERIES, (1, 100, 200)])
def test_on_a_cluster(cluster: Client, maps: Path, target: Path, chunks: Any) -> None:
    rechunk(maps, target, chunks=chunks, max_mem=LITTLE)
    assert_is_maps(target)


def test_a_frame_of_no_elements_is_resumed(tmp_path: Path) -> None:
    to_b2nd(np.empty((0, 5)), tmp_path / "empty.b2nd", chunks=(1, 5))
    for again in (False, True):
        rechunk(
            tmp_path / "empty.b2nd", tmp_path / "again.b2nd", chunks=(2, 5), resume=True, mode="w"
        )
        assert open_b2nd(tmp_path / "again.b2nd").shape == (0, 5)
        assert open_b2nd(tmp_path / "again.b2nd").chunks[1] == 5, again


def test_no_more_tasks_run_at_once_than_may() -> None:
    running, most, lock = [], [], threading.Lock()

    def work(number: int, *before: int) -> int:
        with lock:
            running.append(number)
            most.append(len(running))
        time.sleep(0.002)
        with lock:
            running.remove(number)
        return number

    tasks = with_concurrency({("work", i): (work, i) for i in range(40)}, 3)
    assert threaded_get(tasks, list(tasks), num_workers=8) == tuple(range(40))
    assert max(most) <= 3


MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """192 MiB of maps, cheap to write."""
    path = tmp_path_factory.mktemp("large") / "maps.b2nd"
    write_maps(path, (384, 256, 1024), (1, 64, 256))
    return path


@pytest.mark.parametrize("megabytes", [24, pytest.param(80, marks=pytest.mark.slow)])
def test_memory_stays_within_what_was_stated(
    large: Path, maps: Path, tmp_path: Path, megabytes: int
) -> None:
    growth = peak_growth(
        "b2nd_dask.rechunk(large, target, chunks=(384, 8, 16), max_mem=limit)",
        # loads modules before the memory is measured
        before="b2nd_dask.rechunk(maps, small, chunks=(96, 10, 20), max_mem='16MB')",
        maps=maps,
        small=tmp_path / "small.b2nd",
        large=large,
        target=tmp_path / "series.b2nd",
        limit=megabytes * MIB,
    )
    # plus 2 MiB that the allocator keeps
    assert growth < (megabytes + 2) * MIB
    source, found = open_b2nd(large), open_b2nd(tmp_path / "series.b2nd")
    np.testing.assert_array_equal(found[:, 100:110, 500:520], source[:, 100:110, 500:520])


@pytest.mark.parametrize("onto_itself", [False, True])
def test_a_damaged_chunk_without_checksum_is_not_copied(tmp_path: Path, onto_itself: bool) -> None:
    """A checksum of the copy would make damaged bytes valid."""
    src = tmp_path / "src.b2nd"
    values = np.random.default_rng(0).integers(0, 4000, (20, 50, 50)).astype("f4")
    blosc2.asarray(values, urlpath=str(src), chunks=(1, 50, 50), blocks=(1, 25, 50))
    assert not verify(src).ok
    dst = src if onto_itself else tmp_path / "dst.b2nd"
    if not onto_itself:
        to_b2nd(np.arange(3), dst)
    copy = rechunk(src, tmp_path / "whole.b2nd", chunks=(1, 50, 50))
    np.testing.assert_array_equal(copy[...], values)
    raw = bytearray(src.read_bytes())
    at = len(raw) * 3 // 10
    raw[at : at + 8] = bytes(255 - byte for byte in raw[at : at + 8])
    src.write_bytes(raw)
    with pytest.raises(CorruptChunkError) as caught:
        open_b2nd(src)[...]
    before = dst.read_bytes()
    with pytest.raises(CorruptChunkError, match=rf"chunk {caught.value.chunk}\b"):
        rechunk(src, dst, chunks=(1, 50, 50), mode="w")
    assert dst.read_bytes() == before


def least_memory(source: Path, target: Path, chunks: tuple[int, ...]) -> str:
    """The memory that the error for too little memory advises."""
    with dask.config.set(num_workers=2), pytest.raises(ValueError, match="is too little") as raised:
        rechunk(source, target, chunks=chunks, max_mem="100kB")
    found = re.search(r'Pass max_mem="([^"]+)" or more', str(raised.value))
    assert found
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chunks", "wanted"),
    [
        # one long chunk, whose compressed bytes are more than the memory; many tasks
        ((12_000_000,), (12_000_000,), (400,)),
        ((20_000, 50), (20_000, 1), (1, 50)),
        ((1200, 1200), (6, 6), (1200, 1)),
    ],
)
def test_the_least_memory_is_enough(
    tmp_path: Path,
    maps: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    wanted: tuple[int, ...],
) -> None:
    source, target = tmp_path / "source.b2nd", tmp_path / "target.b2nd"
    values = np.random.default_rng(1).normal(size=shape)
    to_b2nd(values, source, chunks=chunks, cparams={"codec": "lz4", "clevel": 1})
    limit = least_memory(source, target, wanted)
    growth = peak_growth(
        "b2nd_dask.rechunk(source, target, chunks=wanted, max_mem=limit)",
        before="b2nd_dask.rechunk(maps, small, chunks=(96, 10, 20), max_mem='16MB')",
        maps=maps,
        small=tmp_path / "small.b2nd",
        source=source,
        target=target,
        wanted=wanted,
        limit=limit,
    )
    assert growth <= nbytes_of(limit)
    np.testing.assert_array_equal(open_b2nd(target)[...], values)
