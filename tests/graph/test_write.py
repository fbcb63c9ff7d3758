"""`to_b2nd` on local files: frames, failures, and other readers."""

import errno
import gc
import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.diagnostics import Callback, ProgressBar

from b2nd_dask import (
    StaleFrameError,
    UnsupportedFrameError,
    from_b2nd,
    list_staging,
    open_b2nd,
    to_b2nd,
)
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.metalayers import parse_array_meta
from b2nd_dask.frame.array import reference_of
from b2nd_dask.storage import frame_locked
from b2nd_dask.storage.write import local_names
from tests.forked import run_forked

VALUES = np.random.default_rng(3).normal(size=(100, 60))


def leftovers(path):
    """Names beside a target, such as staging areas."""
    return sorted(p.name for p in path.parent.iterdir() if p != path)


@pytest.mark.parametrize("contiguous", [True, False])
def test_python_blosc2_goes_on_with_what_is_written(target, contiguous):
    """In another process, which never imports this package."""
    x = da.from_array(VALUES, chunks=(30, 60))
    to_b2nd(x, target, chunks=(24, 17), blocks=(10, 5), contiguous=contiguous, vlmeta={"a": 1})
    code = """
import sys, blosc2, numpy as np
array = blosc2.open(sys.argv[1], mode="a")
values = np.load(sys.argv[2])
assert np.array_equal(array[...], values) and np.array_equal(array[7:9, ::3], values[7:9, ::3])
assert array.vlmeta["a"] == 1
array.vlmeta["b"] = "two"
array[3:50, 11:40] = -1.0
array.resize((130, 60))
array.resize((135, 60)); array[130:] = 9.0
array[100:130] = 4.0
"""
    np.save(target.parent / "values.npy", VALUES)
    subprocess.run(
        [sys.executable, "-c", code, str(target), str(target.parent / "values.npy")], check=True
    )
    expected = np.concatenate([VALUES, np.full((30, 60), 4.0), np.full((5, 60), 9.0)])
    expected[3:50, 11:40] = -1.0
    frame = open_b2nd(target)
    np.testing.assert_array_equal(frame[...], expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert dict(frame.vlmeta) == {"a": 1, "b": "two"}


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers_write_the_same(target, scheduler):
    x = da.from_array(VALUES, chunks=(13, 60)) * 2 + 1
    with dask.config.set(scheduler=scheduler):
        back = to_b2nd(x, target, chunks=(26, 30))
    np.testing.assert_array_equal(back.compute(scheduler="sync"), VALUES * 2 + 1)
    assert leftovers(target) == []


def test_one_fused_task_reads_computes_and_writes_a_chunk(tmp_path, target):
    source = tmp_path / "source.b2nd"
    to_b2nd(VALUES, source, chunks=(24, 17))
    written = to_b2nd(from_b2nd(source) * 2, target, compute=False)
    tasks = [key for key in dict(written.dask) if str(key).startswith("('write(")]
    assert len(tasks) == 20
    # in addition the opening, one merge and the commit
    assert len(dict(written.dask)) == 23
    written.compute(scheduler="sync")
    assert leftovers(target) == ["source.b2nd"]


def test_delayed_writes_compute_together(tmp_path):
    x = da.from_array(VALUES, chunks=(24, 17))
    paths = [tmp_path / "one.b2nd", tmp_path / "two.b2nd"]
    writes = [x.to_b2nd(paths[0], compute=False), (x + 1).to_b2nd(paths[1], compute=False)]
    assert dask.compute(*writes) == tuple(map(str, paths))
    np.testing.assert_array_equal(open_b2nd(paths[1])[...], VALUES + 1)


def test_a_frame_can_be_overwritten_while_it_is_read(target):
    to_b2nd(VALUES, target, chunks=(24, 17))
    back = (from_b2nd(target) + 1).to_b2nd(target, mode="w")
    np.testing.assert_array_equal(back.compute(), VALUES + 1)


@pytest.mark.parametrize("before", ["file", "directory"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_each_kind_of_frame_replaces_each(target, before, contiguous):
    to_b2nd(VALUES, target, contiguous=before == "file")
    with pytest.raises(FileExistsError, match='mode="w"'):
        to_b2nd(VALUES + 1, target)
    to_b2nd(VALUES + 1, target, mode="w", contiguous=contiguous)
    assert target.is_dir() != contiguous
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES + 1)
    assert leftovers(target) == []


def test_a_directory_of_other_things_is_never_replaced(target):
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="has other files in it"):
        to_b2nd(VALUES, target, mode="w")
    assert (target / "thesis.tex").read_text() == "years of work"


def test_a_link_to_a_frame_stays_a_link(tmp_path, target):
    to_b2nd(VALUES, target)
    link = tmp_path / "link.b2nd"
    link.symlink_to(target)
    to_b2nd(VALUES + 1, link, mode="w")
    assert link.is_symlink()
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES + 1)


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_task_that_fails_leaves_the_old_frame(target, contiguous):
    to_b2nd(VALUES, target, contiguous=contiguous)

    def fail_late(block, block_info=None):
        if block_info[0]["chunk-location"] == (3, 1):
            raise RuntimeError("no more")
        return block

    x = da.from_array(VALUES, chunks=(24, 17)).map_blocks(fail_late, dtype=float)
    with pytest.raises(RuntimeError, match="no more"):
        to_b2nd(x, target, mode="w", contiguous=contiguous)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert leftovers(target) == []


def errno_on_a_full_disk(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    values = np.random.default_rng(0).normal(size=(400, 1000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    with pytest.raises(OSError, match=r"target\.b2nd") as caught:
        to_b2nd(values, target, mode="w", chunks=(20, 1000))
    return caught.value.errno


def test_a_full_disk_leaves_the_old_frame(target):
    """By the file size limit of the process, which the kernel enforces like a full disk."""
    to_b2nd(VALUES, target)
    assert run_forked(errno_on_a_full_disk, target) == errno.EFBIG
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert leftovers(target) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into any directory")
def test_a_read_only_directory(tmp_path, target):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=r"target\.b2nd"):
        to_b2nd(VALUES, target)


@pytest.mark.parametrize("compute", [True, False])
def test_a_read_only_frame_is_not_changed(target, contiguous, compute, monkeypatch):
    """The error says so, before anything is computed."""
    to_b2nd(VALUES, target, contiguous=contiguous)
    original, computed = os.open, []

    def denied(path, flags, *arguments, **keywords):
        # as for a file of mode 0o444, which root may write
        if flags & os.O_ACCMODE and Path(str(path)).is_relative_to(target):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", denied)
    x = da.from_array(VALUES, chunks=(20, 10))
    x = x.map_blocks(lambda block: computed.append(1) or block, meta=np.empty((0, 0)))
    with pytest.raises(PermissionError, match=r"file is read-only") as caught:
        dask.compute(to_b2nd(x, target, mode="r+", region=..., compute=compute))
    # the tasks of a Delayed run concurrently with the check of its first task
    assert not (compute and computed)
    assert caught.value.filename == str(target)
    assert "same path" not in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


def test_a_folder_that_a_process_cannot_enter(target, monkeypatch):
    """It is not the frame that is read-only."""
    to_b2nd(VALUES, target, contiguous=False)

    def denied_by(original):
        def call(path, *arguments, **keywords):
            # as for another user, in a folder of mode 0o700
            if target in Path(str(path)).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return original(path, *arguments, **keywords)

        return call

    for name in ("open", "stat"):
        monkeypatch.setattr(os, name, denied_by(getattr(os, name)))
    with pytest.raises(PermissionError, match="denied, while writing"), frame_locked(target):
        pass


def test_a_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        to_b2nd(VALUES, tmp_path / "nowhere" / "x.b2nd")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"chunks": (200, 0)}, ValueError, "at least 1"),
        ({"chunks": (10,)}, ValueError, "2 axes"),
        ({"chunks": (10, 10), "blocks": (11, 10)}, ValueError, "larger than chunks"),
        ({"mode": "x"}, ValueError, "known are"),
        ({"cparams": {"codex": 1}}, TypeError, "no 'codex'; known are clevel, codec, "),
        ({"cparams": {"codec": "zstandard"}}, TypeError, "known are .*Codec and blosclz, lz4"),
        ({"cparams": {"filters": ["shuffel"]}}, TypeError, "known are .* nofilter, shuffle"),
        ({"cparams": {"clevel": "5"}}, ValueError, "give an int from 0 to 9"),
        ({"cparams": {"typesize": 4}}, ValueError, "typesize 4"),
        ({"cparams": {"codec": blosc2.Codec.ZFP_PREC}}, UnsupportedFrameError, r"blosc2\.asarray"),
        ({"vlmeta": {"n" * 32: 1}}, ValueError, "1 to 31 bytes"),
        ({"vlmeta": {"x": object()}}, TypeError, "'x'"),
        ({"meta": {"b2nd": 1}}, ValueError, "own metalayers"),
        ({"vlmeta": {"b2nd.xxh3": "mine"}}, ValueError, "frame's own checksums"),
        ({"meta": {f"m{i}": i for i in range(16)}}, ValueError, "room for 15"),
        ({"meta": "keep"}, ValueError, "this one reads 0"),
        ({"region": (slice(0, 1), slice(0, 1))}, ValueError, 'mode="r\\+"'),
        ({"mode": "r+"}, ValueError, "pass region= or append_axis="),
        ({"mode": "a"}, ValueError, "frame: pass append_axis="),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(target, arguments, error, message):
    with pytest.raises(error, match=message):
        to_b2nd(VALUES, target, **arguments)
    assert leftovers(target) == []
    assert not target.exists()


def test_arrays_that_cannot_be_written(target):
    with pytest.raises(TypeError, match="Python objects"):
        to_b2nd(np.array([{}, None]), target)
    x = da.from_array(VALUES, chunks=20)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        to_b2nd(x[x[:, 0] > 0], target)
    with pytest.raises(ValueError, match="choose smaller chunks"):
        to_b2nd(da.zeros((1 << 17, 1 << 15)), target, chunks=(1 << 17, 1 << 15))


def test_constants_take_no_space(target):
    back = da.zeros((10**5, 10**5), chunks=10**4).to_b2nd(target)
    assert target.stat().st_size < 1000
    assert back[12345, 54321].compute() == 0
    assert (open_b2nd(target).chunk_kinds() == ChunkKind.ZEROS).all()


@pytest.mark.parametrize(
    ("function", "dtype", "message"),
    [
        (lambda b: b[:3], "f8", r"\(3,\).*\(5,\)"),
        (lambda b: b + 0.7, "i8", "dtype float64"),
        (lambda b: b.astype("i8") + 300, "i1", "dtype int64"),
        (lambda b: np.full(b.shape, "longer"), "U3", "<U6"),
        (lambda b: np.ma.masked_less(b, 3), "f8", "masked"),
    ],
)
def test_blocks_that_are_not_what_was_declared(target, function, dtype, message):
    x = da.from_array(np.arange(10.0), chunks=5)
    x = x.map_blocks(function, dtype=dtype, meta=np.empty(0, dtype))
    with pytest.raises((TypeError, ValueError), match=message):
        to_b2nd(x, target)
    assert leftovers(target) == []


def test_what_a_frame_cannot_take_is_not_cut_to_fit(target):
    to_b2nd(np.array(["abc", "d"]), target)
    for values in (["longer"], [30000]):
        with pytest.raises(TypeError, match="astype"):
            to_b2nd(np.array(values), target, mode="r+", append_axis=0)
    assert open_b2nd(target)[...].tolist() == ["abc", "d"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_delayed_that_is_not_computed_leaves_nothing_and_computes_twice(target, contiguous):
    written = to_b2nd(VALUES, target, mode="w", contiguous=contiguous, compute=False)
    assert leftovers(target) == []
    for _ in range(2):
        assert written.compute() == str(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert leftovers(target) == []


@pytest.mark.parametrize("content", ["precious", "42", "4"])
def test_only_frames_are_replaced(target, content):
    target.write_text(content)
    with pytest.raises(FileExistsError, match="not a frame"):
        to_b2nd(VALUES, target, mode="w")
    assert target.read_text() == content


def test_a_target_that_becomes_something_else_meanwhile_is_not_replaced(target):
    written = to_b2nd(VALUES, target, mode="w", compute=False)

    def occupy(block):
        target.mkdir(exist_ok=True)
        (target / "thesis.tex").write_text("years of work")
        return block

    x = da.from_array(VALUES, chunks=50).map_blocks(occupy, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(FileExistsError):
        to_b2nd(x, target, mode="w")
    with pytest.raises(FileExistsError):
        written.compute()
    assert (target / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("has_rename", [True, False])
@pytest.mark.parametrize("how", [{}, {"mode": "a", "append_axis": 0}])
def test_who_loses_a_race_is_not_advised_to_replace(
    target, contiguous, how, has_rename, monkeypatch
):
    if not has_rename:
        monkeypatch.setattr(local_names, "renameat2", lambda *_: False)

    def lose(block):
        to_b2nd(VALUES * 2, target)
        return block

    x = da.from_array(VALUES, chunks=-1).map_blocks(lose, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(FileExistsError, match=r"another writer .* meanwhile") as caught:
        to_b2nd(x, target, contiguous=contiguous, **how)
    assert str(target) in str(caught.value)
    assert 'mode="w"' not in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES * 2)
    assert leftovers(target) == []


def test_a_replaced_frame_is_not_kept_open(target):
    """In a new process, since this one has frames of other tests open."""
    assert run_forked(kept_open, target) <= 1


def kept_open(target):
    """Number of open files after a frame was replaced repeatedly."""
    for i in range(20):
        to_b2nd(np.full((9, 9), i) + np.eye(9), target, mode="w")
    gc.collect()
    names = [str(fd.readlink()) for fd in list(Path("/proc/self/fd").iterdir()) if fd.is_symlink()]
    return sum("target.b2nd" in name for name in names)


def test_every_bit_of_a_constant_is_kept(target):
    payload = np.array(0x7FF8000000000123, "u8").view("f8")
    values = np.zeros((5, 4))
    values[1], values[2], values[3], values[4] = -0.0, np.nan, payload, 7.5
    to_b2nd(values, target, chunks=(1, 4))
    assert open_b2nd(target)[...].tobytes() == values.tobytes()
    kinds = open_b2nd(target).chunk_kinds().ravel().tolist()
    assert kinds == [ChunkKind.ZEROS, 0, ChunkKind.NAN, 0, 0]
    assert blosc2.open(str(target))[...].tobytes() == values.tobytes()


def test_cells_beyond_the_edge_read_as_zeros_when_python_blosc2_grows_the_array(target):
    to_b2nd(np.full((30, 30), 7.5), target, chunks=(20, 20))
    blosc2.open(str(target), mode="a").resize((40, 40))
    expected = np.zeros((40, 40))
    expected[:30, :30] = 7.5
    with pytest.warns(UserWarning, match=r"\(40, 40\).*\(30, 30\)"):
        frame = open_b2nd(target)
    np.testing.assert_array_equal(frame[...], expected)


def test_blocks_of_many_chunks_and_chunks_of_many_blocks(target):
    seen = []

    def count(block):
        seen.append(block.shape)
        return block

    x = da.from_array(VALUES, chunks=((7, 60, 33), (31, 29))).map_blocks(
        count, dtype=float, meta=np.empty((0, 0))
    )
    to_b2nd(x, target, chunks=(20, 20))
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert len(seen) == 6  # nothing is computed twice


def test_metadata_is_kept_through_a_transform(tmp_path, target):
    source = tmp_path / "source.b2nd"
    meta, vlmeta = {"units": "K"}, {"history": ["made", (1, 2)], "grid": np.arange(3)}
    to_b2nd(VALUES, source, chunks=20, meta=meta, vlmeta=vlmeta)
    to_b2nd(from_b2nd(source)[::2] - 1, target, meta="keep", vlmeta="keep")
    frame = open_b2nd(target)
    assert dict(frame.meta) == meta
    assert frame.vlmeta["history"] == ["made", (1, 2)]
    np.testing.assert_array_equal(frame.vlmeta["grid"], np.arange(3))
    stored = blosc2.open(str(target))
    assert stored.meta["units"] == "K"
    assert stored.vlmeta["history"] == ["made", (1, 2)]


def test_defaults_are_the_dask_blocks_and_a_low_level(target):
    back = to_b2nd(da.from_array(VALUES, chunks=(24, 17)), target)
    assert back.chunksize == (24, 17)
    stored = blosc2.open(str(target))
    assert stored.schunk.cparams.codec == blosc2.Codec.ZSTD
    assert stored.schunk.cparams.clevel == 1
    big = to_b2nd(da.zeros((1 << 13, 1 << 13), chunks=-1), target, mode="w")
    assert big.chunksize == (2048, 2048)


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_frame_for_older_readers_too(target, contiguous):
    to_b2nd(VALUES, target, chunks=(24, 17), caterva=True, contiguous=contiguous)
    to_b2nd(VALUES[:5], target, mode="r+", append_axis=0)
    layers = reference_of(open_b2nd(target)).parsed.header.metalayers
    for name in ("b2nd", "caterva"):
        assert parse_array_meta(layers[name]).shape == (105, 60)
    expected = np.concatenate([VALUES, VALUES[:5]])
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    reader = os.environ.get("CATERVA_PYTHON")
    if reader:  # an older Python with python-caterva 0.7.3
        code = "import caterva, sys; sys.stdout.buffer.write(caterva.open(sys.argv[1]).to_buffer())"
        done = subprocess.run([reader, "-c", code, target], capture_output=True, check=True)
        assert done.stdout == expected.tobytes()


REGIONS = [
    (slice(24, 48), slice(0, 17)),
    (slice(3, 50), slice(10, 60)),
    (slice(99, 100), slice(None)),
    (slice(None), slice(-1, None)),
    (slice(5, 5), slice(0, 60)),
]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("region", REGIONS)
def test_a_region_is_written(target, region, contiguous):
    to_b2nd(VALUES, target, chunks=(24, 17), contiguous=contiguous, vlmeta={"k": [1]})
    expected = VALUES.copy()
    new = np.random.default_rng(8).normal(size=expected[region].shape)
    expected[region] = new
    back = to_b2nd(da.from_array(new, chunks=13), target, mode="r+", region=region)
    np.testing.assert_array_equal(back.compute(), expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert open_b2nd(target).vlmeta["k"] == [1]
    assert leftovers(target) == []


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_are_appended(target, axis, contiguous):
    expected = np.zeros((0, 60)) if axis == 0 else np.zeros((100, 0))
    for count in (24, 5, 40):
        shape = (count, 60) if axis == 0 else (100, count)
        new = np.random.default_rng(count).normal(size=shape)
        expected = np.concatenate([expected, new], axis=axis)
        back = to_b2nd(
            new, target, mode="a", append_axis=axis, chunks=(24, 17), contiguous=contiguous
        )
        np.testing.assert_array_equal(back.compute(), expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"region": (slice(0, 101), slice(0, 60))}, ValueError, "is not a range of an axis"),
        ({"region": (slice(0, 100, 2), slice(0, 60))}, ValueError, "the step must be 1"),
        ({"region": (slice(0, 10), slice(0, 60))}, ValueError, "does not broadcast to the region"),
        ({"append_axis": 2}, ValueError, "2 axes"),
        ({"append_axis": 1, "region": ()}, ValueError, "not both"),
        ({"append_axis": 0, "vlmeta": {"a": 1}}, ValueError, "omit vlmeta="),
        (
            {"append_axis": 0, "contiguous": False},
            ValueError,
            "it is one file",
        ),
        ({"append_axis": 0, "caterva": True}, ValueError, "no metalayer of Caterva"),
        ({"append_axis": 0.7}, TypeError, "append_axis=0.7: give the number of an axis"),
    ],
)
def test_wrong_updates_leave_the_frame(target, arguments, error, message):
    to_b2nd(VALUES, target)
    with pytest.raises(error, match=message):
        to_b2nd(VALUES, target, mode="r+", **arguments)
    with pytest.raises(TypeError, match="astype"):
        to_b2nd(VALUES.astype("c16"), target, mode="r+", append_axis=0)
    with pytest.raises(ValueError, match=r"expand_dims\(x, 0\)"):
        to_b2nd(VALUES[0], target, mode="r+", append_axis=0)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert leftovers(target) == []


FORM = {
    "chunks": (20, 30),
    "blocks": 10,
    "cparams": {"clevel": 3, "codec": blosc2.Codec.LZ4},
    "meta": {"a": 1},
    "vlmeta": {"b": [2]},
}


def test_an_append_that_would_begin_a_frame_without_such_an_axis(target):
    with pytest.raises(ValueError, match=r"append_axis=3: .* has 3 axes"):
        to_b2nd(np.zeros((6, 4, 3)), target, mode="a", append_axis=3)
    assert not target.exists()


def test_appends_by_the_call_that_began_the_frame(target):
    for times in (1, 2, 3):
        to_b2nd(VALUES, target, mode="a", append_axis=0, **FORM)
        assert open_b2nd(target).shape == (100 * times, 60)
    # options that depend on the array are not compared
    to_b2nd(VALUES, target, mode="a", append_axis=0, chunks=-1)
    assert open_b2nd(target).chunks == (20, 30)


@pytest.mark.parametrize(
    "other",
    [
        {"chunks": (20, 20)},
        {"chunks": 10},
        {"chunks": {0: 10}},
        {"chunks": (-1, 10)},
        {"blocks": 5},
        {"cparams": {"clevel": 9}},
        {"meta": {}},
        {"vlmeta": {"b": [3]}},
        {"contiguous": False},
        {"caterva": True},
        {"stats": True},
    ],
)
def test_appends_that_ask_for_another_frame_are_refused(target, other):
    to_b2nd(VALUES, target, **FORM)
    with pytest.raises(ValueError, match=rf"{next(iter(other))}.*the existing frame has"):
        to_b2nd(VALUES, target, mode="a", append_axis=0, **other)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
    assert leftovers(target) == []


def test_an_update_of_a_frame_that_changed_meanwhile_is_refused(target):
    to_b2nd(VALUES, target)
    update = to_b2nd(VALUES, target, mode="r+", append_axis=0, compute=False)
    to_b2nd(VALUES * 2, target, mode="w")
    with pytest.raises(StaleFrameError):
        update.compute()
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES * 2)


def tasks_that_write(x, path):
    """Tasks of a write, without those for the frame as a whole."""
    graph = x.to_b2nd(path, compute=False).__dask_graph__()
    return sum(str(key).startswith("('write(") for key in dict(graph))


def test_arrays_that_dask_made_of_zeros_need_no_task_for_a_block(target):
    to_b2nd(da.zeros((10**6, 10**6)), target)
    assert target.stat().st_size < 1000
    stored = blosc2.open(str(target))
    assert (stored.shape, stored.dtype) == ((10**6, 10**6), np.dtype("f8"))
    assert not stored[-3:, 5].any()


@pytest.mark.parametrize("value", [0, np.nan, 7.5, -0.0])
@pytest.mark.parametrize("shape", [(), (7,), (40, 50), (41, 53)])
def test_arrays_that_dask_made_of_one_value(target, value, shape):
    x = da.full(shape, value, chunks=10, dtype="f8")
    to_b2nd(x, target, chunks=(10,) * x.ndim)
    assert open_b2nd(target)[...].tobytes() == np.full(shape, value).tobytes()
    assert blosc2.open(str(target))[...].tobytes() == np.full(shape, value).tobytes()


def test_only_whole_chunks_of_nan_are_known_beforehand(tmp_path):
    x = da.full((41, 50), np.nan, chunks=10)
    assert tasks_that_write(x, tmp_path / "nan.b2nd") == 5
    assert tasks_that_write(da.zeros((41, 50), chunks=10), tmp_path / "zeros.b2nd") == 0
    # not by dask itself
    made = da.map_blocks(lambda: np.zeros((10, 10)), chunks=((10, 10), (10,)), dtype="f8")
    assert tasks_that_write(made, tmp_path / "made.b2nd") == 2


def test_no_tasks_of_blocks_that_need_none_are_left(tmp_path):
    zeros = da.zeros((41, 50), chunks=10)
    # which layers dask would leave depends on their names, which are random
    graphs = [to_b2nd(zeros, tmp_path / f"{i}.b2nd", compute=False).dask for i in range(10)]
    assert {len(dict(graph)) for graph in graphs} == {4}


def test_zeros_written_into_a_region(target):
    values = np.arange(2000.0).reshape(40, 50) + 1
    to_b2nd(values, target, chunks=(10, 10))
    to_b2nd(da.zeros((20, 50), chunks=10), target, mode="r+", region=(slice(10, 30), slice(None)))
    values[10:30] = 0
    np.testing.assert_array_equal(open_b2nd(target)[...], values)


def test_progress_bars_tell_what_is_on_the_disk(target):
    """The task of a block ends when its chunks are staged; the tasks after it are short."""
    staged, bar = [], io.StringIO()

    class Watch(Callback):
        def _posttask(self, key, result, dsk, state, worker_id):
            if str(key).startswith("('write("):
                files = (p for p in target.parent.glob(".*.staging/**/*") if p.is_file())
                staged.append(sum(p.stat().st_size for p in files))

    x = da.random.default_rng(0).random((20, 10_000), chunks=(1, 10_000))
    with Watch(), ProgressBar(out=bar, minimum=0):
        to_b2nd(x, target, cparams={"clevel": 1})
    size = target.stat().st_size
    assert len(staged) == 20
    for done, nbytes in enumerate(staged, start=1):
        assert nbytes >= 0.9 * size * done / 20
    assert "100% Completed" in bar.getvalue()


@pytest.mark.parametrize("filters", ["BitShuffle", ["bitshuffle", "bytedelta"]])
def test_codecs_and_filters_by_name(tmp_path, filters):
    target = tmp_path / "a.b2nd"
    items = np.arange(100.0)
    to_b2nd(items, target, cparams={"codec": "LZ4hc", "filters": filters})
    written = blosc2.open(str(target)).cparams
    assert written.codec is blosc2.Codec.LZ4HC
    names = [filters] if isinstance(filters, str) else filters
    used = [f.name.lower() for f in written.filters if f is not blosc2.Filter.NOFILTER]
    assert used == [name.lower() for name in names]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("codec", ["lz4", "lz4hc", "zstd"])
def test_dictionaries_that_do_not_help(tmp_path, codec, contiguous):
    """python-blosc2 4.14.1 cannot read such chunks that it writes itself."""
    target = tmp_path / "a.b2nd"
    items = np.random.default_rng(0).integers(0, 2**63, (80, 30))
    items[40:] %= 100
    cparams = {"codec": codec, "use_dict": True}
    to_b2nd(items, target, chunks=(40, 30), cparams=cparams, contiguous=contiguous)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], items)
    np.testing.assert_array_equal(open_b2nd(target)[...], items)
    to_b2nd(items[:40], target, mode="r+", append_axis=0)
    np.testing.assert_array_equal(blosc2.open(str(target))[80:], items[:40])


def test_the_delta_filter_over_several_blocks_warns(tmp_path):
    items = np.arange(1000)
    delta = {"filters": ["delta", "shuffle"]}
    with pytest.warns(UserWarning, match="python-blosc2 misreads slices"):
        to_b2nd(items, tmp_path / "a.b2nd", blocks=100, cparams=delta)
    np.testing.assert_array_equal(from_b2nd(tmp_path / "a.b2nd").compute(), items)
    # all readers read a single block correctly
    to_b2nd(items, tmp_path / "b.b2nd", blocks=1000, cparams=delta)
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "b.b2nd"))[777:790], items[777:790])


@pytest.mark.parametrize(
    "region",
    [
        (slice(10, 30), slice(None)),
        slice(10, 30),
        (slice(10, 30),),
        (slice(10, 30), ...),
        (..., slice(5, 20)),
        3,
        -1,
        (3, slice(2, 7)),
        (slice(None), 4),
        (3, 4),
        ...,
        (np.int64(3), ...),
    ],
)
def test_regions_are_basic_indices(target, region):
    to_b2nd(VALUES, target, chunks=(16, 16))
    expected = VALUES.copy()
    items = np.random.default_rng(5).normal(size=expected[region].shape)
    expected[region] = items
    back = to_b2nd(items, target, mode="r+", region=region)
    np.testing.assert_array_equal(back.compute(), expected)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (slice(0, 101), "not a range of an axis with 100 elements; append_axis="),
        ((0, 0, 0), "too many indices"),
        ((..., ...), "only one ellipsis"),
        ((None, 0), "no new axes"),
        (100, "out of bounds for axis 0"),
        ([1, 2], r"region= takes integers, slices .* not a list\. .* mode=.w"),
        ((0, np.ones(60, bool)), r"region= takes integers, slices .* not a ndarray"),
        (True, r"region= takes integers, slices .* not a bool"),
        ({"x": 0}, "not a dict"),
        (slice(30, 10), "not a range"),
        (3, r"shape \(2,\) does not broadcast to the region of shape \(1, 60\)"),
    ],
)
def test_what_is_no_region(target, region, message):
    to_b2nd(VALUES, target)
    with pytest.raises(ValueError, match=message):
        to_b2nd(np.zeros(2), target, mode="r+", region=region)


@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_that_would_become_others_are_refused(target, kind):
    to_b2nd(np.array([1, 2, 3], f"{kind}[ns]"), target)
    far, near = (np.array([n, "NaT"], f"{kind}[s]") for n in (10**11, 10**9))
    with pytest.raises(OverflowError, match="cannot hold: they are out of its range"):
        to_b2nd(far, target, mode="r+", region=np.s_[1:])
    assert from_b2nd(target).compute().astype("i8").tolist() == [1, 2, 3]
    to_b2nd(near, target, mode="r+", region=np.s_[1:])
    np.testing.assert_array_equal(from_b2nd(target)[1:].compute(), near)
    with pytest.raises(OverflowError, match="or not multiples of its unit"):
        to_b2nd(np.array([1500], f"{kind}[ps]"), target, mode="r+", region=np.s_[:1])
    to_b2nd(np.array([2000], f"{kind}[ps]"), target, mode="r+", region=np.s_[:1])
    assert from_b2nd(target)[0].compute().astype("i8") == 2
    if kind == "m8":
        to_b2nd(np.array([7]), target, mode="r+", region=np.s_[:1])
        assert from_b2nd(target)[0].compute().astype("i8") == 7


def test_times_in_fields_that_would_become_others_are_refused(target):
    to_b2nd(np.zeros(3, [("at", "M8[ns]"), ("n", "i4")]), target)
    near, far = (np.array([(n, 1)], [("at", "M8[s]"), ("n", "i4")]) for n in (10**9, 10**11))
    with pytest.raises(OverflowError, match="cannot hold: they are out of its range"):
        to_b2nd(far, target, mode="r+", region=np.s_[1:2])
    to_b2nd(near, target, mode="r+", region=np.s_[1:2])
    assert from_b2nd(target)["at"][1].compute() == near["at"][0]


@pytest.mark.parametrize(("given", "wanted"), [("f8", "f4"), ("i8", "f2"), ("c16", "c8")])
def test_numbers_that_would_become_infinite_are_refused(target, given, wanted):
    large = np.array([1.0, 2.0, 10**18]).astype(given) ** (3 if given != "i8" else 1)
    lying = da.from_array(np.ones(6, wanted), chunks=3).map_blocks(
        lambda block, block_info=None: large if block_info[0]["chunk-location"] == (1,) else block,
        dtype=wanted,
    )
    with pytest.raises(
        OverflowError, match=r"target\.b2nd: the block at \(3,\) has elements .* large"
    ):
        to_b2nd(lying, target)
    assert not target.exists()
    to_b2nd(np.array([1, np.inf, 2], wanted), target)
    with pytest.raises(OverflowError, match="too large"):
        to_b2nd(large, target, mode="r+", region=...)
    back = to_b2nd(np.array([3, 4, 5], given), target, mode="r+", region=...)
    np.testing.assert_array_equal(back.compute(), np.array([3, 4, 5], wanted))


def test_other_formats_are_guessed(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    to_b2nd(np.arange(10), tmp_path / "a.b2nd", contiguous=False)
    (tmp_path / "a.b2nd" / "chunks.b2frame").unlink()
    for name, guess in {
        "a.npy": "NumPy file",
        "a.h5": "HDF5 file",
        "a.zarr": r"da\.from_zarr",
        "a.b2nd": "index of a sparse frame is missing",
    }.items():
        with pytest.raises(ValueError, match=guess):
            open_b2nd(tmp_path / name)


def test_the_url_of_a_directory_is_no_file():
    url = "memory://directory/dd/"
    with pytest.raises(ValueError, match="pass contiguous=False"):
        to_b2nd(np.arange(10), url)
    with pytest.raises(FileNotFoundError, match="memory:// is visible to one process only"):
        open_b2nd(url)
    assert to_b2nd(np.arange(10), url, contiguous=False).sum().compute() == 45


def test_a_store_in_memory_is_seen_by_one_process_only():
    url = "memory://processes/a.b2nd"
    there = to_b2nd(np.arange(10.0), url, chunks=5)
    seen = pytest.raises(FileNotFoundError, match="memory:// is visible to one process only")
    with dask.config.set(scheduler="processes", num_workers=1):
        with seen:
            there.compute()
        with seen:
            to_b2nd(da.ones(10, chunks=5) * 2, url, mode="w")
    assert list_staging(url) == []


def test_what_has_no_dtype_of_numpy_is_named(target):
    with pytest.raises(TypeError, match=r"a Delayed, which has no NumPy dtype.* da\.from_delayed"):
        to_b2nd(dask.delayed(np.ones)(3), target)


def test_an_schunk_is_refused_at_once(target):
    schunk = blosc2.SChunk(data=np.arange(10))
    with pytest.raises(TypeError, match=r"SChunk has no dtype.*np\.frombuffer\(schunk\[:\]"):
        to_b2nd(schunk, target)
    to_b2nd(np.frombuffer(schunk[:], int), target)
    with pytest.raises(TypeError, match="SChunk has no dtype"):
        to_b2nd(schunk, target, mode="a", append_axis=0)
