"""Frames that are created, staged in parts by many processes, and committed in one step."""

import os
import random
import re
import signal
import tempfile
import threading
import uuid
from contextlib import ExitStack, nullcontext
from pathlib import Path
from unittest.mock import Mock

import blosc2
import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    B2ndError,
    StaleFrameError,
    commit,
    create,
    list_staging,
    open_b2nd,
    rechunk,
    remove_staging,
    to_b2nd,
    verify,
)
from b2nd_dask.format import trailer
from b2nd_dask.frame.write import parts, transaction
from b2nd_dask.frame.write.parts import pending_at
from b2nd_dask.storage import Location, Staging
from b2nd_dask.storage.write.local_names import remove_path
from b2nd_dask.storage.write.local_staging import LocalStaging
from b2nd_dask.storage.write.object_staging import BaseObjectStaging
from b2nd_dask.storage.write.object_store import ObjectStore
from tests.forked import answer, run_to_end, started
from tests.graph.writers import CHUNKS, VALUES, holds
from tests.strategies import examples


@pytest.fixture(params=["memory", "s3"])
def store(request):
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}.b2nd", {}
    server = request.getfixturevalue("s3_server")
    url = f"{server.url}/{uuid.uuid4().hex}.b2nd"
    return url, {"storage_options": server.storage_options}


def stage(target, values, start, stop, **keywords):
    return to_b2nd(values, target, mode="stage", region=slice(start, stop), **keywords)


def stage_rows(target, start, stop, connection):
    connection.send("begun")
    connection.recv()
    stage(target, da.from_array(VALUES[start:stop], chunks=(10, 20)), start, stop)
    connection.send("done")


@pytest.mark.slow
def test_processes_that_stage_parts(target, contiguous):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, vlmeta={"a": 1})
    with ExitStack() as stack:
        writers = [
            stack.enter_context(started(stage_rows, target, at, at + 20))[1] for at in (0, 20, 40)
        ]
        assert [answer(writer) for writer in writers] == ["begun"] * 3
        random.Random(1).shuffle(writers)
        for writer in writers:
            writer.send("go")
        assert [answer(writer) for writer in writers] == ["done"] * 3
    assert not target.exists()
    assert list_staging(target)[0].nbytes > VALUES.nbytes / 2
    frame = commit(target)
    assert dict(frame.vlmeta) == {"a": 1}
    holds(target, VALUES)


@pytest.mark.parametrize("contiguous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_stores(store, contiguous):
    url, options = store
    create(url, (60, 40), "f8", chunks=CHUNKS, contiguous=contiguous, **options)
    for start in (40, 0, 20):
        stage(url, VALUES[start : start + 20], start, start + 20, **options)
    # a repeated job
    stage(url, VALUES[:20], 0, 20, **options)
    with pytest.raises(B2ndError, match=re.escape("parts overlap: [10:30, 0:40] and [")):
        stage(url, VALUES[10:30], 10, 30, **options)
    assert len(list_staging(url, **options)) == 1
    frame = commit(url, **options)
    np.testing.assert_array_equal(frame[...], VALUES)
    assert list_staging(url, **options) == []
    with pytest.raises(FileNotFoundError, match="start one by b2nd_dask"):
        commit(url, **options)


def test_a_part_that_is_staged_again_replaces_itself(target, contiguous):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    for factor in (3, 2, 1):
        stage(target, VALUES[:30] * factor, 0, 30)
        stage(target, VALUES[30:] * factor, 30, 60)
    commit(target)
    holds(target, VALUES)
    # and its old chunks are not left in the frame
    assert sum(path.stat().st_size for path in [target, *target.rglob("*")]) < 2 * VALUES.nbytes


def test_parts_that_overlap_are_refused(target, contiguous):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES[:30], 0, 30)
    with pytest.raises(B2ndError, match=re.escape("[20:50, 0:40] and [0:30, 0:40]")) as caught:
        stage(target, VALUES[20:50], 20, 50)
    assert str(target) in str(caught.value)
    stage(target, VALUES[30:], 30, 60)
    commit(target)
    holds(target, VALUES)


def test_overlaps_that_nobody_saw_are_refused_by_the_commit(target, monkeypatch):
    """As in a store, where two concurrent jobs do not see each other."""
    create(target, (60, 40), float, chunks=CHUNKS)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "require_disjoint", lambda *_, **__: None)
        stage(target, VALUES[:30], 0, 30)
        stage(target, VALUES[20:], 20, 60)
    with pytest.raises(B2ndError, match=re.escape("[0:30, 0:40] and [20:60, 0:40]")):
        commit(target)
    assert not target.exists()


def test_missing_parts_are_named(target, contiguous):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES[10:20], 10, 20)
    to_b2nd(VALUES[30:, :20], target, mode="stage", region=(slice(30, 60), slice(0, 20)))
    with pytest.raises(B2ndError, match="7 of 12 chunks were not staged") as caught:
        commit(target)
    assert "[0:10, 0:40], [20:30, 0:40], [30:60, 20:40]. Stage" in str(caught.value)
    assert not target.exists()
    expected = np.full((60, 40), 7.5)
    expected[10:20], expected[30:, :20] = VALUES[10:20], VALUES[30:, :20]
    commit(target, fill=7.5)
    holds(target, expected)


@pytest.mark.parametrize("fill", [0, np.nan, -0.0])
def test_a_fill(target, fill):
    create(target, (55, 35), float, chunks=CHUNKS)
    stage(target, VALUES[:20, :35], 0, 20)
    commit(target, fill=fill)
    expected = np.full((55, 35), fill, float)
    expected[:20] = VALUES[:20, :35]
    holds(target, expected)


def test_a_fill_that_the_dtype_cannot_hold(target):
    create(target, 10, "i2", chunks=5)
    with pytest.raises(TypeError):
        commit(target, fill=0.5)
    with pytest.raises(OverflowError, match="fill=70000"):
        commit(target, fill=70000)
    assert not target.exists()


def test_regions_that_cut_chunks(target):
    create(target, (55, 35), float, chunks=CHUNKS)
    with pytest.raises(ValueError, match=re.escape("stage [0:20, 20:35]")):
        to_b2nd(0, target, mode="stage", region=(slice(5, 15), slice(20, 30)))
    # a chunk that the array's edge cuts is whole
    to_b2nd(1, target, mode="stage", region=(slice(50, 55), slice(20, 35)))
    assert commit(target, fill=0)[...].sum() == 75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "pass its region="), ({"region": ..., "chunks": 5}, "omit chunks=")],
)
def test_arguments_that_do_not_go_together(target, arguments, message):
    create(target, 10, "i2", chunks=5)
    with pytest.raises(ValueError, match=message):
        to_b2nd(0, target, mode="stage", **arguments)
    with pytest.raises(ValueError, match="resume"):
        to_b2nd(0, target, mode="stage", region=..., resume=True)


def test_nothing_was_begun(target):
    for call in (lambda: commit(target), lambda: stage(target, VALUES, 0, 60)):
        with pytest.raises(FileNotFoundError, match="start one by b2nd_dask") as caught:
            call()
        assert str(target) in str(caught.value)


def test_beginning_again(target):
    create(target, (60, 40), float, chunks=CHUNKS)
    stage(target, VALUES[:30], 0, 30)
    # a repeated job
    create(target, (60, 40), float, chunks=CHUNKS)
    with pytest.raises(FileExistsError, match="a frame with other options was started"):
        create(target, (60, 40), float, chunks=10)
    stage(target, VALUES[30:], 30, 60)
    commit(target)
    holds(target, VALUES)
    with pytest.raises(FileExistsError, match="the target exists already"):
        create(target, (60, 40), float, chunks=CHUNKS)


def test_the_old_frame_stays_until_the_commit(target, contiguous):
    to_b2nd(VALUES, target, contiguous=contiguous)
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, mode="w")
    stage(target, VALUES * 2, 0, 60)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    commit(target)
    holds(target, VALUES * 2)


def test_a_frame_that_has_appeared_is_not_replaced(target):
    create(target, (60, 40), float, chunks=CHUNKS)
    stage(target, VALUES, 0, 60)
    to_b2nd(VALUES * 2, target)
    with pytest.raises(FileExistsError):
        commit(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES * 2)
    assert remove_staging(target)
    holds(target, VALUES * 2)


def commit_and_die_before(target):
    LocalStaging.give_name = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    commit(target)


@pytest.mark.parametrize(
    ("by", "had_frame"),
    [("to_b2nd", 1), ("to_b2nd", 0), ("blosc2", 1), ("blosc2", 0), ("rechunk", 1), ("region", 1)],
)
def test_a_frame_that_came_after_create_is_not_replaced(tmp_path, contiguous, by, had_frame):
    """Nor by a commit that continues after a kill; without that frame it continues."""
    target = tmp_path / "a.b2nd"
    if had_frame:
        to_b2nd(VALUES * 3, target, contiguous=contiguous)
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, mode="w")
    stage(target, VALUES, 0, 60)
    assert run_to_end(commit_and_die_before, target).code == -signal.SIGKILL
    if by == "to_b2nd":
        to_b2nd(VALUES * 2, target, mode="w", contiguous=contiguous)
    elif by == "rechunk":
        rechunk(target, target, chunks=(60, 40), mode="w", contiguous=contiguous)
    elif by == "region":
        to_b2nd(0, target, mode="r+", region=slice(0, 10))
    else:
        blosc2.asarray(VALUES, urlpath=str(target), mode="w", contiguous=contiguous)
    expected = open_b2nd(target)[...]
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, mode="w")
    refused = StaleFrameError if had_frame else FileExistsError
    with pytest.raises(refused, match=r"since create.*remove it and commit|meanwhile") as caught:
        commit(target)
    assert str(target) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)
    remove_path(target)
    commit(target)
    holds(target, VALUES)


@pytest.mark.parametrize("had_frame", [True, False])
def test_a_store_keeps_a_frame_that_came_after_create(store, had_frame):
    url, keywords = store
    if had_frame:
        to_b2nd(VALUES, url, **keywords)
    create(url, (60, 40), float, chunks=CHUNKS, mode="w", **keywords)
    stage(url, VALUES, 0, 60, **keywords)
    to_b2nd(VALUES * 2, url, mode="w", **keywords)
    with pytest.raises((StaleFrameError, FileExistsError), match=r"since create|meanwhile"):
        commit(url, **keywords)
    np.testing.assert_array_equal(open_b2nd(url, **keywords)[...], VALUES * 2)


def test_the_commit_of_a_sparse_frame_in_a_store_goes_on(store, monkeypatch):
    url, keywords = store
    create(url, (60, 40), float, chunks=CHUNKS, mode="w", contiguous=False, **keywords)
    stage(url, VALUES, 0, 60, **keywords)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "copy", Mock(side_effect=ConnectionError("it failed")))
        with pytest.raises(OSError, match="it failed"):
            commit(url, **keywords)
    np.testing.assert_array_equal(commit(url, **keywords)[...], VALUES)


@pytest.mark.parametrize("step", ["read_manifests", "staged_records"])
def test_a_late_commit_keeps_the_parts_of_the_next_frame(target, contiguous, monkeypatch, step):
    def start():
        create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, mode="w")

    original = getattr(parts, step)

    def after_others(*args, **keywords):
        monkeypatch.setattr(parts, step, original)
        commit(target)
        start()
        stage(target, VALUES * 2, 0, 60)
        return original(*args, **keywords)

    start()
    stage(target, VALUES, 0, 60)
    monkeypatch.setattr(parts, step, after_others)
    np.testing.assert_array_equal(commit(target)[...], VALUES)
    commit(target)
    holds(target, VALUES * 2)


def test_a_late_commit_does_not_publish_the_next_frame(target, contiguous, monkeypatch):
    def start(dtype):
        create(target, (60, 40), dtype, chunks=CHUNKS, contiguous=contiguous, mode="w")
        stage(target, VALUES.astype(dtype), 0, 60)

    original = parts.read_manifests

    def after_others(staging):
        monkeypatch.setattr(parts, "read_manifests", original)
        commit(target)
        remove_path(target)
        start("f4")
        return original(staging)

    start("i4")
    monkeypatch.setattr(parts, "read_manifests", after_others)
    with pytest.raises(B2ndError, match="during the commit"):
        commit(target)
    commit(target)
    holds(target, VALUES.astype("f4"))


@pytest.mark.parametrize("had_frame", [True, False])
def test_a_frame_that_comes_during_the_commit_is_not_replaced(target, monkeypatch, had_frame):
    if had_frame:
        to_b2nd(VALUES * 3, target)
    create(target, (60, 40), float, chunks=CHUNKS, mode="w")
    stage(target, VALUES, 0, 60)
    original = LocalStaging.give_name

    def after_another(staging, ready):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStaging, "give_name", original)
            to_b2nd(VALUES * 2, target, mode="w")
        return original(staging, ready)

    monkeypatch.setattr(LocalStaging, "give_name", after_another)
    with pytest.raises((StaleFrameError, FileExistsError), match="meanwhile"):
        commit(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES * 2)


def test_a_part_that_fails_is_no_part(target):
    create(target, (60, 40), float, chunks=CHUNKS)

    def fail(block, block_info=None):
        if block_info[0]["chunk-location"] == (2, 1):
            raise RuntimeError("no more")
        return block

    x = da.from_array(VALUES[:30], chunks=CHUNKS).map_blocks(fail, meta=np.empty((0, 0)))
    with pytest.raises(RuntimeError):
        stage(target, x, 0, 30)
    stage(target, VALUES[30:], 30, 60)
    with pytest.raises(B2ndError, match=re.escape("the elements [0:30, 0:40]")):
        commit(target)
    stage(target, VALUES[:30], 0, 30)
    commit(target)
    holds(target, VALUES)


def commit_and_die(target):
    Staging.clean_up = lambda staging: os.kill(os.getpid(), signal.SIGKILL)
    commit(target)


@pytest.mark.slow
def test_a_commit_that_was_killed_when_the_frame_was_there(target, contiguous):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES, 0, 60)
    late = stage(target, VALUES * 2, 0, 60, compute=False)
    assert run_to_end(commit_and_die, target).code == -signal.SIGKILL
    # a job after the commit raises an error
    with pytest.raises(FileNotFoundError, match="committed"):
        late.compute()
    commit(target)
    holds(target, VALUES)


def test_a_part_that_is_staged_during_the_commit(target, monkeypatch):
    create(target, (60, 40), float, chunks=CHUNKS)
    stage(target, VALUES, 0, 60)
    original = parts.records_of_parts

    def then_stage(*arguments):
        records = original(*arguments)
        stage(target, VALUES * 2, 0, 60)
        return records

    with monkeypatch.context() as patch:
        patch.setattr(parts, "records_of_parts", then_stage)
        with pytest.raises(B2ndError, match="when all jobs have ended"):
            commit(target)
    assert not target.exists()
    commit(target)
    holds(target, VALUES * 2)


def test_a_frame_that_was_given_up_and_begun_anew(target):
    create(target, (60, 40), float, chunks=CHUNKS)
    late = stage(target, VALUES * 2, 0, 60, compute=False)
    remove_staging(target)
    create(target, (60, 40), float, chunks=CHUNKS)
    with pytest.raises(FileNotFoundError, match="removed and started again"):
        late.compute()
    stage(target, VALUES, 0, 60)
    commit(target)
    holds(target, VALUES)


def test_parts_that_an_interrupted_removal_left(store):
    url, keywords = store
    create(url, (60, 40), float, chunks=CHUNKS, **keywords)
    stage(url, VALUES[:30], 0, 30, **keywords)
    stage(url, VALUES[30:], 30, 60, **keywords)
    (area,) = list_staging(url, **keywords)
    fs, path = fsspec.url_to_fs(area.path, **keywords.get("storage_options", {}))
    fs.rm_file(f"{path}/plan.kept")
    create(url, (60, 40), float, chunks=CHUNKS, **keywords)
    stage(url, VALUES[:30], 0, 30, **keywords)
    with pytest.raises(B2ndError, match=re.escape("no part has the elements [30:60, 0:40]")):
        commit(url, **keywords)


def test_a_table_that_is_damaged(target):
    create(target, (60, 40), float, chunks=CHUNKS)
    stage(target, VALUES, 0, 60)
    (table,) = target.parent.glob(".*/kept/part-*")
    whole = table.read_bytes()
    for damaged in (whole[:-1], whole[104:], whole[:50] + b"x" + whole[51:], whole + whole[:104]):
        table.write_bytes(damaged)
        with pytest.raises(B2ndError, match=re.escape("stage the parts [0:60, 0:40] again")):
            commit(target)
    table.with_stem("part-0-1").write_bytes(damaged)
    with pytest.raises(B2ndError, match="parts overlap"):
        commit(target)
    assert not target.exists()
    plan = next(target.parent.glob(".*/kept/plan*"))
    plan.write_bytes(plan.read_bytes()[:-1])
    with pytest.raises(B2ndError, match=r"plan of the frame that was started .* is damaged"):
        commit(target)


def test_names_that_no_part_of_the_frame_can_have(target):
    create(target, (60, 40), float, chunks=CHUNKS)
    stage(target, VALUES, 0, 60)
    (table,) = target.parent.glob(".*/kept/part-*")
    for name in ("part-5-2", "part-ffff-2", "part-1-2", "part-0-ffff"):
        table.with_stem(name).write_bytes(b"")
    commit(target)
    holds(target, VALUES)


@pytest.mark.parametrize("shape", [(), (0, 4), (3,)])
def test_small_arrays(target, shape):
    create(target, shape, ">i2")
    to_b2nd(7, target, mode="stage", region=...)
    commit(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], np.full(shape, 7))


@pytest.mark.parametrize("chunks", [None, "auto", (1, "auto", -1)])
def test_no_elements_along_an_axis_and_many_along_others(target, chunks):
    create(target, (0, 4000, 10000), "f8", chunks=chunks)
    assert commit(target).shape == (0, 4000, 10000)


def test_a_part_without_elements(tmp_path):
    target = tmp_path / "x.b2nd"
    create(target, (3, 1), "f8", chunks=(2, 1))
    to_b2nd(1.0, target, mode="stage", region=np.s_[:, :])
    # empty, at the end of the last chunk, which the array's edge cuts
    to_b2nd(2.0, target, mode="stage", region=np.s_[4:3, 0:0])
    assert commit(target)[:].tolist() == [[1.0]] * 3


@examples(15)
@given(data=st.data(), contiguous=st.booleans(), fill=st.sampled_from([None, 0, 3]))
def test_any_parts(data, contiguous, fill):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    expected = np.full(shape, 0 if fill is None else fill)
    written = np.zeros(shape, bool)
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="sync"):
        target = Path(folder, "x.b2nd")
        create(target, shape, expected.dtype, chunks=chunks, contiguous=contiguous)
        for number in range(data.draw(st.integers(0, 5))):
            region = tuple(
                slice(a * c, min(b * c, n))
                for n, c in zip(shape, chunks, strict=True)
                for a, b in [sorted(data.draw(st.tuples(*[st.integers(0, -(-n // c))] * 2)))]
            )
            if written[region].any():
                continue
            to_b2nd(number, target, mode="stage", region=region)
            expected[region], written[region] = number, True
        if fill is None and not written.all():
            with pytest.raises(B2ndError, match="were not staged"):
                commit(target)
            return
        commit(target, fill=fill)
        holds(target, expected)


def damage_cut(path):
    os.truncate(path, 100)


def damage_byte(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_cut, damage_byte, Path.unlink])
def test_what_was_staged_is_damaged(target, contiguous, damage):
    to_b2nd(VALUES[:5], target, contiguous=contiguous)
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous, mode="w")
    stage(target, VALUES[:30], 0, 30)
    before = set(target.parent.glob(".*.staging/*"))
    # in its own file, like parts of other processes
    assert run_to_end(stage, target, VALUES[30:], 30, 60).code == 0
    damage(min(set(target.parent.glob(".*.staging/*")) - before))
    with pytest.raises(B2ndError, match=re.escape("stage the parts [30:60, 0:40] again")) as caught:
        commit(target)
    assert str(target) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES[:5])
    assert len(list_staging(target)) == 1
    stage(target, VALUES[30:], 30, 60)
    commit(target)
    holds(target, VALUES)


def test_an_object_that_is_gone(store):
    url, options = store
    create(url, (60, 40), "f8", chunks=CHUNKS, **options)
    stage(url, VALUES[:30], 0, 30, **options)
    staging = pending_at(Location.of(url, **options)).staging
    area = staging.area()
    before = set(area.names(area.folder))
    stage(url, VALUES[30:], 30, 60, **options)
    (gone,) = (name for name in set(area.names(area.folder)) - before if "." not in name)
    area.remove([area.place(gone)])
    with pytest.raises(B2ndError, match=re.escape("stage the parts [30:60, 0:40] again")):
        commit(url, **options)
    stage(url, VALUES[30:], 30, 60, **options)
    np.testing.assert_array_equal(commit(url, **options)[...], VALUES)


@pytest.mark.parametrize("place", ["memory", "s3", "local"])
def test_plans_that_are_begun_at_once(request, tmp_path, monkeypatch, place):
    """All find no pending frame, then all continue."""
    url, options = str(tmp_path / "target.b2nd"), {}
    if place == "memory":
        url = f"memory://{uuid.uuid4().hex}.b2nd"
    if place == "s3":
        server = request.getfixturevalue("s3_server")
        url = f"{server.url}/{uuid.uuid4().hex}.b2nd"
        options = {"storage_options": server.storage_options}
    with monkeypatch.context() as patch:
        for kind in (LocalStaging, BaseObjectStaging):
            patch.setattr(kind, "names", lambda _: [])
        create(url, 10, "i2", chunks=5, **options)
        first = pending_at(Location.of(url, **options)).frame_key
        create(url, 10, "i2", chunks=5, **options)
        with pytest.raises(FileExistsError, match="a frame with other options was started"):
            create(url, 10, "i2", chunks=2, **options)
    # the plan that jobs use was not replaced
    assert pending_at(Location.of(url, **options)).frame_key == first
    assert len(list_staging(url, **options)) == 1


def create_and_stage(target, at, connection):
    connection.send("begun")
    connection.recv()
    create(target, (40, 4), "i4", chunks=(10, 4))
    stage(target, np.int32(at), at, at + 10)
    connection.send("done")


@pytest.mark.slow
def test_jobs_that_all_begin_the_frame(target):
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(create_and_stage, target, at))[1] for at in range(0, 40, 10)
        ]
        assert [answer(job) for job in jobs] == ["begun"] * 4
        for job in jobs:
            job.send("go")
        assert [answer(job) for job in jobs] == ["done"] * 4
    commit(target)
    holds(target, np.repeat([0, 10, 20, 30], 10)[:, None] * np.ones((1, 4), "i4"))


@pytest.mark.parametrize("step", ["staged_records", "read_manifests", "publish"])
def test_commits_at_once(target, contiguous, monkeypatch, step):
    """Another process finishes first, at any step of this one, and removes the staging area."""
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES, 0, 60)
    module = transaction if step == "publish" else parts
    original = getattr(module, step)

    def after_another(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, original)
            if not target.exists():
                if step == "publish":
                    monkeypatch.setattr(LocalStaging, "exclusive", lambda _: nullcontext())
                commit(target)
        return original(*arguments)

    monkeypatch.setattr(module, step, after_another)
    np.testing.assert_array_equal(commit(target)[...], VALUES)
    holds(target, VALUES)


@pytest.mark.parametrize("mode", ["w-", "w"])
@pytest.mark.parametrize("changes", [1, 5])
def test_a_repeated_commit_changes_nothing(target, contiguous, mode, changes, monkeypatch):
    """Also after more changes of the frame than the history keeps."""
    monkeypatch.setattr(trailer, "MAX_UPDATES", 3)
    create(target, (60, 40), float, mode=mode, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES, 0, 60)
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        commit(target)
    for value in range(changes):
        to_b2nd(value, target, mode="r+", region=slice(0, 10))
    expected = VALUES.copy()
    expected[:10] = changes - 1
    np.testing.assert_array_equal(commit(target)[...], expected)
    holds(target, expected)


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_script_goes_on_after_a_commit_that_was_killed(target, contiguous, mode, monkeypatch):
    """Killed after its publication: `create` then starts a new frame, or raises an error."""

    def begin():
        create(target, (60, 40), float, mode=mode, chunks=CHUNKS, contiguous=contiguous)

    begin()
    stage(target, VALUES, 0, 60)
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        commit(target)
    with pytest.raises(FileNotFoundError, match=r"is already committed.* remove_staging"):
        stage(target, VALUES, 0, 60)
    if mode == "w":
        begin()
        stage(target, VALUES + 1, 0, 60)
        begin()
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
        np.testing.assert_array_equal(commit(target)[...], VALUES + 1)
    else:
        with pytest.raises(FileExistsError, match="the target exists"):
            begin()
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert not list_staging(target)


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_frame_that_was_replaced_after_a_commit_that_was_killed(target, mode, monkeypatch):
    """A part of the pending frame became that frame: it is neither missing nor damaged."""
    create(target, (60, 40), float, mode=mode, chunks=CHUNKS)
    stage(target, VALUES, 0, 60)
    with monkeypatch.context() as patch:
        # as if the process was killed before
        patch.setattr(Staging, "clean_up", lambda _: None)
        commit(target)
    to_b2nd(VALUES * 2, target, mode="w")
    with pytest.raises(FileExistsError, match="another writer has created this meanwhile"):
        commit(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES * 2)


@pytest.mark.parametrize("when", ["before it is staged", "before it is entered"])
def test_a_job_that_loses_against_the_commit(target, contiguous, monkeypatch, when):
    create(target, (60, 40), float, chunks=CHUNKS, contiguous=contiguous)
    stage(target, VALUES, 0, 60)

    one_at_a_time = threading.Lock()

    def then_commit(block):
        with one_at_a_time:
            if not target.exists():
                commit(target)
        return block

    late = da.from_array(VALUES * 2, chunks=CHUNKS)
    if when == "before it is staged":
        late = late.map_blocks(then_commit, meta=np.empty((0, 0)))
    else:
        original = LocalStaging.sync

        def commit_first(staging, names):
            commit(target)
            return original(staging, names)

        monkeypatch.setattr(LocalStaging, "sync", commit_first)
    with pytest.raises(FileNotFoundError, match="is already committed") as caught:
        stage(target, late, 0, 60)
    assert "same path" not in str(caught.value)
    holds(target, VALUES)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("u1", 0),
        ("u1", 255),
        ("?", 0),
        ("?", 1),
        (">i2", -5),
        ("f4", 0.1),
        ("f2", np.inf),
        ("M8[s]", "NaT"),
        ("M8[s]", "2020-01-02T03:04:05"),
        ("M8[D]", np.datetime64("2020-01-02T00", "h")),
        ("m8[s]", "NaT"),
        ("m8[s]", 7),
        ("S3", b"ab"),
        ("U2", "é"),
        ("c8", 1j),
    ],
)
def test_fills(target, dtype, fill):
    create(target, 10, dtype, chunks=4)
    expected = np.full(10, fill, dtype)
    np.testing.assert_array_equal(commit(target, fill=fill)[...], expected)
    assert verify(target).ok


@pytest.mark.parametrize(
    ("dtype", "fill", "error"),
    [
        ("u1", 256, OverflowError),
        ("u1", -1, OverflowError),
        ("i8", 2**63, OverflowError),
        ("u8", 2**64, TypeError),
        ("?", 2, OverflowError),
        ("?", 0.0, TypeError),
        ("f4", 1e300, OverflowError),
        ("f2", 70000, OverflowError),
        ("c8", 1e300, OverflowError),
        ("f4", 1j, TypeError),
        ("i4", np.nan, TypeError),
        ("S3", b"abcdef", TypeError),
        ("S3", 12345, TypeError),
        ("U2", "abc", TypeError),
        ("M8[D]", "2020-01-02T03", OverflowError),
        ("M8[ns]", "9999-01-01", OverflowError),
        ("M8[s]", 0, TypeError),
    ],
)
def test_fills_that_would_be_altered(target, dtype, fill, error):
    create(target, 10, dtype, chunks=4)
    with pytest.raises(error, match=re.escape(f"fill={fill!r}")):
        commit(target, fill=fill)
    assert not target.exists()
    assert len(list_staging(target)) == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "error", "message"),
    [
        (10, "f88", {}, TypeError, "dtype='f88'"),
        (10, 5, {}, TypeError, "dtype=5"),
        (10, "U", {}, TypeError, "dtype='U' has no length"),
        (10, object, {}, TypeError, "elements of object"),
        (-1, "f4", {}, ValueError, "shape=-1"),
        ((3, -4), "f4", {}, ValueError, "shape=(3, -4)"),
        (2.5, "f4", {}, ValueError, "shape=2.5"),
        ("abc", "f4", {}, ValueError, "shape='abc'"),
        (None, "f4", {}, ValueError, "shape=None"),
        ((2**40, 2**40), "f4", {}, ValueError, "shape=(1099511627776, 1099511627776)"),
        (2**60, "u1", {}, ValueError, "give chunks="),
        (2**40, "u1", {"chunks": 2}, ValueError, "choose larger chunks="),
        (10, "f4", {"chunks": "abc"}, ValueError, "chunks='abc'"),
        (10, "f4", {"chunks": 2.5}, ValueError, "chunks=2.5"),
        (10, "f4", {"chunks": 2**70}, ValueError, "choose smaller chunks="),
        (10, "f4", {"chunks": 5, "blocks": 2.5}, ValueError, "blocks=2.5"),
    ],
)
def test_arguments_of_create_that_make_no_frame(target, shape, dtype, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        create(target, shape, dtype, **options)
    assert list(target.parent.iterdir()) == []


def test_shapes_of_other_integers(target):
    create(target, [np.int64(3), 4], "f4", chunks=2)
    assert commit(target, fill=1).shape == (3, 4)
