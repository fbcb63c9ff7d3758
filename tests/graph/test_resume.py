"""`to_b2nd(..., resume=True)`: a run after a crash reuses staged chunks."""

import errno
import io
import itertools
import logging
import os
import signal
import time
import uuid
from multiprocessing import get_context
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

from b2nd_dask import (
    compact,
    list_staging,
    open_b2nd,
    remove_staging,
    to_b2nd,
)
from b2nd_dask.edges.cli import main
from b2nd_dask.storage.read.local_reader import identity_of
from b2nd_dask.storage.write.object_store import ObjectStore
from b2nd_dask.storage.write.staging import Staging
from tests.forked import run_forked
from tests.graph.gate import pass_gate

# 8 blocks of 2 x 1 chunks; of the last, the upper chunk is constant
VALUES = np.random.default_rng(5).normal(size=(80, 40))
VALUES[70:75, 20:] = 3.0
CHUNKS = (5, 20)


class Work:
    """Counts computed blocks; fails after a given number."""

    def __init__(self, limit=8):
        self.done, self.limit = [], limit

    def __call__(self, block, block_info=None):
        if len(self.done) == self.limit:
            raise RuntimeError("no more")
        self.done.append(block_info[0]["chunk-location"])
        return block


def write(target, work, **arguments):
    x = da.from_array(VALUES, chunks=(20, 20))
    x = x.map_blocks(work, dtype=float, meta=np.empty((0, 0)), name="work")
    arguments = {"chunks": CHUNKS, "resume": True} | arguments
    with dask.config.set(scheduler="sync"):
        return to_b2nd(x, target, **arguments)


def fail_once(target, **arguments):
    work = Work(limit=3)
    with pytest.raises(RuntimeError, match="no more"):
        write(target, work, **arguments)
    return work.done


@pytest.mark.parametrize("contiguous", [True, False])
def test_only_what_is_missing_is_computed(target, contiguous, caplog):
    caplog.set_level(logging.INFO, "b2nd_dask")
    done = fail_once(target, contiguous=contiguous)
    assert not target.exists()
    again = Work()
    back = write(target, again, contiguous=contiguous)
    assert sorted(done + again.done) == [(i, j) for i in range(4) for j in range(2)]
    assert len(done) == 3
    np.testing.assert_array_equal(back.compute(), VALUES)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES)
    assert list(target.parent.iterdir()) == [target]
    said = [record.getMessage() for record in caplog.records if record.name == "b2nd_dask"]
    assert said == [
        f"{target}: 0 of 32 chunks are reused",
        f"{target}: {4 * len(done)} of 32 chunks are reused",
    ]


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_finished_write_is_not_done_again(target, contiguous, caplog):
    caplog.set_level(logging.INFO, "b2nd_dask")
    write(target, Work(), contiguous=contiguous)
    before = identity_of(target.stat())
    again = Work()
    back = write(target, again, contiguous=contiguous)
    np.testing.assert_array_equal(back.compute(), VALUES)
    delayed = write(target, again, contiguous=contiguous, compute=False)
    assert delayed.compute() == str(target)
    assert again.done == []
    assert identity_of(target.stat()) == before
    said = [record.getMessage() for record in caplog.records if record.name == "b2nd_dask"]
    assert "32 of 32" in said[-1]
    to_b2nd(VALUES + 1, target, mode="w", contiguous=contiguous)
    with pytest.raises(FileExistsError):
        write(target, again, contiguous=contiguous)
    assert again.done == []
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
def test_other_writes_are_not_mixed_up(target, contiguous):
    fail_once(target, contiguous=contiguous)
    for arguments in ({"chunks": (10, 20)}, {"cparams": {"clevel": 1}}, {"vlmeta": {"a": 1}}):
        again = Work()
        write(target, again, contiguous=contiguous, mode="w", **arguments)
        assert len(again.done) == 8
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    (left,) = list_staging(target)
    assert remove_staging(target) == [left]
    assert list(target.parent.iterdir()) == [target]


def damage(area, how):
    staged = [path for path in area.iterdir() if path.suffix in (".part", ".chunk")]
    manifests = list(area.glob("kept/part-*"))
    assert staged
    assert manifests
    for path in staged if how in ("flip", "cut", "remove") else manifests:
        raw = bytearray(path.read_bytes())
        if how == "remove":
            path.unlink()
        elif how in ("cut", "cut manifest"):
            path.write_bytes(raw[:-7])
        else:
            # in a part, after the space for the header
            raw[-len(raw) // 3] ^= 1
            path.write_bytes(raw)


@pytest.mark.parametrize("how", ["flip", "cut", "remove", "flip manifest", "cut manifest"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_what_was_damaged_is_computed_again(target, contiguous, how):
    done = fail_once(target, contiguous=contiguous)
    (area,) = (Path(info.path) for info in list_staging(target))
    damage(area, how)
    again = Work()
    back = write(target, again, contiguous=contiguous)
    assert 8 - len(done) < len(again.done) <= 8
    np.testing.assert_array_equal(back.compute(), VALUES)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES)


def test_a_manifest_does_not_lead_out_of_its_area(target, tmp_path):
    from b2nd_dask.format.chunk.chunk_header import chunk_digest
    from b2nd_dask.frame.write.records import (
        ChunkRecords,
        put_manifest,
        read_manifests,
        row_dtype,
        staged_records,
    )
    from b2nd_dask.storage import Location, staging_for

    staging = staging_for(
        Location.of(target), sparse=False, replace=False, header_len=100, resume_key="0" * 16
    )
    staging.prepare()
    secret = b"x" * 50
    (tmp_path / "secret.part").write_bytes(secret)
    for name, count in (("../secret.part", 0), (f"{'0' * 32}.part", 1)):
        (staging.directory / ("0" * 32 + ".part")).write_bytes(secret)
        rows = np.array([(0, 0, 0, 50, (0, chunk_digest(secret)))], row_dtype())
        records = ChunkRecords((name,), rows)
        put_manifest(records, staging, fsync=False)
        manifests = read_manifests(staging).values()
        assert len(staged_records(manifests, staging, row_dtype(), 1).rows) == count


def test_what_stands_under_the_names_of_manifests_is_neither_followed_nor_needed(target, tmp_path):
    fail_once(target)
    (area,) = (Path(info.path) for info in list_staging(target))
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * 800)
    manifests = sorted(area.glob("kept/part-*"))
    for path in manifests:
        path.unlink()
    manifests[0].symlink_to(victim)
    manifests[1].symlink_to(tmp_path / "nothing")
    back = write(target, Work())
    np.testing.assert_array_equal(back.compute(), VALUES)
    assert victim.read_bytes() == b"x" * 800


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("place", [{"append_axis": 0}, {"region": (slice(0, 80), slice(0, 40))}])
def test_an_update_is_resumed(target, contiguous, place):
    to_b2nd(-VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    arguments = {"mode": "r+", "chunks": None, **place}
    done = fail_once(target, **arguments)
    again = Work()
    write(target, again, **arguments)
    assert len(done) + len(again.done) == 8
    expected = np.concatenate([-VALUES, VALUES]) if "append_axis" in place else VALUES
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("touch", ["time", "element"])
@pytest.mark.parametrize("sealed", [True, False])
def test_an_append_goes_on_while_the_old_elements_are_the_same(target, touch, sealed, caplog):
    caplog.set_level(logging.INFO, "b2nd_dask")
    old = -VALUES[:77]
    if sealed:
        to_b2nd(old, target, chunks=CHUNKS)
    else:
        blosc2.asarray(old, urlpath=str(target), chunks=CHUNKS)
    fail_once(target, mode="r+", append_axis=0, chunks=None)
    if touch == "time":
        os.utime(target, (1, 1))
    else:
        # in a chunk that the append cuts; without checksums only its bytes show the change
        blosc2.open(str(target), mode="a")[76, 0] = 9
        old[76, 0] = 9
    back = write(target, Work(limit=99), mode="r+", append_axis=0, chunks=None)
    assert (": 0 of" in caplog.messages[-1]) == (touch == "element")
    np.testing.assert_array_equal(back.compute(), np.concatenate([old, VALUES]))


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_object_stores(request, kind, contiguous, caplog):
    caplog.set_level(logging.INFO, "b2nd_dask")
    url, keywords = f"memory://{uuid.uuid4().hex}.b2nd", {}
    if kind == "s3":
        server = request.getfixturevalue("s3_server")
        url = f"{server.url}/{uuid.uuid4().hex}.b2nd"
        keywords = {"storage_options": server.storage_options}
    done = fail_once(url, contiguous=contiguous, **keywords)
    (left,) = list_staging(url, **keywords)
    assert left.nbytes > 0
    again = Work()
    back = write(url, again, contiguous=contiguous, **keywords)
    assert len(done) + len(again.done) == 8
    np.testing.assert_array_equal(back.compute(), VALUES)
    assert f"{url}: {4 * len(done)} of 32" in caplog.text
    assert list_staging(url, **keywords) == []
    fail_once(url + "x", contiguous=contiguous, **keywords)
    assert len(remove_staging(url + "x", **keywords)) == 1
    assert list_staging(url + "x", **keywords) == []


def test_a_manifest_that_was_cut_by_a_full_disk(target, monkeypatch):
    original, count = os.pwrite, itertools.count()

    def pwrite(fd, data, start):
        if Path(f"/proc/self/fd/{fd}").readlink().parent.name != "kept":
            return original(fd, data, start)
        at = next(count)
        if at == 1:
            return original(fd, data[:20], start)
        if at == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(fd, data, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(OSError, match="No space") as caught:
            write(target, Work())
    assert str(target) in str(caught.value)
    # the disk has space again, and the same process continues
    work = Work(limit=4)
    with pytest.raises(RuntimeError, match="no more"):
        write(target, work)
    again = Work()
    write(target, again)
    assert len(again.done) == 8 - 1 - len(work.done)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


@pytest.mark.parametrize("contiguous", [True, False])
def test_an_append_that_begins_a_frame_is_finished_after_its_publication(
    target, contiguous, monkeypatch
):
    arguments = {"mode": "a", "append_axis": 0, "contiguous": contiguous}
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        write(target, Work(), **arguments)
    assert len(list_staging(target)) == 1
    for rows in (80, 160):
        # the first call finds the append finished, the second appends
        write(target, Work(), **arguments)
        assert open_b2nd(target).shape == (rows, 40)
        assert not list_staging(target)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("f8", {}),
        ("f8", {"max_mem": "100MB"}),
        ("f8", {"encoding": {"dtype": "i2", "scale_factor": 0.5}}),
        ("M8[h]", {"encoding": {"dtype": "i8", "units": "hours since 1970-01-01"}}),
    ],
)
def test_an_append_of_a_labelled_array_that_begins_a_frame_is_finished_too(
    target, monkeypatch, dtype, options
):
    values = da.from_array(np.arange(80 * 40).reshape(80, 40).astype(dtype), chunks=CHUNKS)
    given = xr.DataArray(values, {"t": np.arange(80)}, ("t", "x"), name="v")

    def append():
        return to_b2nd(given, target, mode="a", append_dim="t", resume=True, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "clean_up", lambda _: None)
        append()
    assert len(list_staging(target)) == 1
    for rows in (80, 160):
        written = append()
        np.testing.assert_array_equal(written.t, np.arange(rows) % 80)
        np.testing.assert_array_equal(written, np.tile(given, (rows // 80, 1)))
        assert not list_staging(target)


def test_an_append_that_has_finished_is_another_one_when_it_is_made_again(target):
    to_b2nd(-VALUES, target, chunks=CHUNKS)
    for times in (1, 2):
        write(target, Work(), mode="r+", append_axis=0, chunks=None)
        assert open_b2nd(target).shape == (80 + 80 * times, 40)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("region", [slice(0, 10), slice(1, 9)])
def test_a_region_that_was_overwritten_is_written_again(target, contiguous, region):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    for n in (1, 2, 1, 2, 1):
        block = da.full(VALUES[region].shape, float(n), chunks=(5, 20))
        to_b2nd(block, target, mode="r+", region=region, resume=True)
        np.testing.assert_array_equal(open_b2nd(target)[region], block.compute())


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_finished_frame_keeps_later_changes(target, contiguous, mode, monkeypatch):
    x, options = np.zeros((40, 4)), {"mode": mode, "chunks": (10, 4), "contiguous": contiguous}
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        to_b2nd(x, target, resume=True, **options)
    to_b2nd(1, target, mode="r+", region=slice(20))
    assert to_b2nd(x, target, resume=True, **options).sum().compute() == 80
    assert not list_staging(target)


def compacted(target):
    to_b2nd(7, target, mode="r+", region=slice(5))
    assert compact(target) > 0


BETWEEN = {
    "region": lambda target: to_b2nd(7, target, mode="r+", region=slice(5)),
    "compact": compacted,
    "compact twice": lambda target: (compacted(target), compacted(target)),
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("between", BETWEEN)
def test_an_append_that_was_killed_after_its_publication(target, contiguous, between, monkeypatch):
    """The same call does not append twice: it finds its append finished."""

    def append():
        write(target, Work(), mode="r+", append_axis=0, chunks=None)

    to_b2nd(-VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        append()
    assert len(list_staging(target)) == 1
    BETWEEN[between](target)
    append()
    assert open_b2nd(target).shape == (160, 40)
    assert not list_staging(target)


@pytest.mark.parametrize("between", ["region", "compact"])
def test_an_append_that_was_killed_before_its_publication(target, between):
    """A change of a chunk that the append completes makes the append start again."""
    to_b2nd(np.zeros((78, 40)), target, chunks=CHUNKS)
    fail_once(target, mode="r+", append_axis=0, chunks=None)
    to_b2nd(1, target, mode="r+", region=slice(70, None))
    BETWEEN[between](target)
    write(target, Work(), mode="r+", append_axis=0, chunks=None)
    np.testing.assert_array_equal(open_b2nd(target)[78:], VALUES)


def test_objects_of_a_store_are_not_listed_for_each_batch(monkeypatch):
    from b2nd_dask.frame.write import records

    url = f"memory://{uuid.uuid4().hex}.b2nd"
    fail_once(url)
    original, listed = ObjectStore.names, []

    def names(self, folder):
        listed.append(folder)
        return original(self, folder)

    monkeypatch.setattr(records, "_BATCH_ROWS", 2)
    monkeypatch.setattr(ObjectStore, "names", names)
    fail_once(url)
    # once for the manifests
    assert len(listed) == 1


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_commit_of_a_sparse_frame_in_a_store_is_resumed(request, monkeypatch, kind):
    url, keywords = f"memory://{uuid.uuid4().hex}.b2nd", {}
    if kind == "s3":
        server = request.getfixturevalue("s3_server")
        url = f"{server.url}/{uuid.uuid4().hex}.b2nd"
        keywords = {"storage_options": server.storage_options}
    original, count = ObjectStore.copy, itertools.count()

    def copy(self, *arguments):
        if next(count) == 5:
            raise OSError("the connection is lost")
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "copy", copy)
        with pytest.raises(OSError, match="the connection is lost"):
            write(url, Work(), contiguous=False, **keywords)
    # neither another write nor one without resume may reuse its chunks
    for other in ({"resume": False}, {"chunks": (10, 20)}):
        with pytest.raises(FileExistsError, match="exists already"):
            write(url, Work(), contiguous=False, **keywords, **other)
    again = Work()
    back = write(url, again, contiguous=False, **keywords)
    assert again.done == []
    np.testing.assert_array_equal(back.compute(), VALUES)
    assert list_staging(url, **keywords) == []


def write_at_a_gate(target, gate, contiguous, scheduler):
    """Write in this process; half of the blocks wait at the gate. Returns the log."""
    values = np.random.default_rng(5).normal(size=(400, 50))
    x = da.from_array(values, chunks=(10, 50))
    x = x.map_blocks(AtGate(gate), dtype=float, meta=np.empty((0, 0)), name="at-a-gate")
    said = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=said, format="%(message)s")
    # forked processes belong to the group of this one, and need no imports
    forked = {"multiprocessing.context": "fork"}
    with dask.config.set(forked, scheduler=scheduler, num_workers=2):
        to_b2nd(x, target, chunks=(5, 50), contiguous=contiguous, resume=True)
    return said.getvalue()


class AtGate:
    def __init__(self, gate):
        self.gate = gate

    def __call__(self, block):
        pass_gate(self.gate, 20)
        return block + 1


def write_in_a_group(*arguments):
    """Write in a group of processes of its own, that ends as a whole."""
    os.setsid()
    write_at_a_gate(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_after_a_kill_another_process_goes_on(target, tmp_path, contiguous, scheduler):
    gate = tmp_path / "gate"
    arguments = target, gate, contiguous, scheduler
    # half of the blocks wait at the gate: the write cannot end before it is killed
    first = get_context("forkserver").Process(target=write_in_a_group, args=arguments)
    first.start()
    try:
        deadline = time.monotonic() + 300
        while sum(info.nbytes for info in list_staging(target)) < 40_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.join()
    assert not target.exists()
    gate.touch()
    said = run_forked(write_at_a_gate, *arguments)
    reused = int(said.split(": ")[1].split(" of 80")[0])
    assert 0 < reused < 80
    values = np.random.default_rng(5).normal(size=(400, 50))
    np.testing.assert_array_equal(open_b2nd(target)[...], values + 1)
    assert list_staging(target) == []


def test_staging_is_listed_and_removed_from_the_command_line(target, tmp_path):
    other = tmp_path / "target.b2nd.other"
    fail_once(target)
    fail_once(target, chunks=(10, 20))
    fail_once(other)
    keys = [info.key for info in list_staging(target)]
    assert len(keys) == 2
    listed = CliRunner().invoke(main, ["staging", str(target)]).output
    assert all(key in listed for key in keys)
    removed = CliRunner().invoke(main, ["staging", str(target), "--remove", "--key", keys[0]])
    assert keys[1] not in removed.output
    assert "1 removed" in removed.output
    assert [info.key for info in list_staging(target)] == keys[1:]
    CliRunner().invoke(main, ["staging", str(target), "--remove"])
    assert "nothing" in CliRunner().invoke(main, ["staging", str(target)]).output
    assert len(list_staging(other)) == 1


def test_a_write_mentions_what_other_writes_have_left(target, caplog):
    fail_once(target)
    fail_once(target.with_name(f"{target.name}2"))
    # the same write is no other one
    fail_once(target)
    assert not caplog.records
    (left,) = list_staging(target)
    write(target, Work(), resume=False)
    (record,) = caplog.records
    assert record.message.startswith(f"{target}: staging areas of other writes")
    assert left.key in record.message
    caplog.clear()
    remove_staging(target)
    write(target, Work(), resume=False, mode="w")
    assert not caplog.records


def test_targets_whose_names_begin_alike_or_are_long(tmp_path):
    names = ["a" * 200 + ".1", "a" * 200 + ".2", "é" * 100, "a[*]?.b2nd"]
    for name in names:
        fail_once(tmp_path / name)
    for name in names:
        assert len(list_staging(tmp_path / name)) == 1
        write(tmp_path / name, Work())
        assert list_staging(tmp_path / name) == []
