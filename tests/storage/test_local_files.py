"""System calls for writing, where they do less than they should."""

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from b2nd_dask import system, to_b2nd
from b2nd_dask.storage import Location, staging_for
from b2nd_dask.storage.write import local_staging
from b2nd_dask.system import pwrite, sync
from tests.storage.staged_frames import staged_at


@pytest.fixture
def staging(tmp_path):
    found = staging_for(
        Location.of(tmp_path / "a.b2nd"), sparse=False, replace=False, header_len=100
    )
    found.prepare()
    return found


def test_a_write_that_the_system_cuts_is_gone_on_with(tmp_path, monkeypatch):
    """As Linux does at 2 GiB: however often it is tried, the whole never fits into one call."""
    original = os.pwrite

    def cut(fd, data, at):
        return original(fd, data[:1000], at)

    monkeypatch.setattr(os, "pwrite", cut)
    payload = os.urandom(4100)
    path = tmp_path / "a.part"
    path.write_bytes(b"before")
    fd = os.open(path, os.O_RDWR)
    try:
        pwrite(fd, payload, 6)
    finally:
        os.close(fd)
    assert path.read_bytes() == b"before" + payload


def test_many_small_chunks(staging):
    payloads = [bytes([i % 251]) * (i % 7) for i in range(3000)]
    runs = staging.append(payloads)
    assert staging.fetch(runs) == payloads
    np.testing.assert_array_equal([run.stop - run.start for run in runs], [*map(len, payloads)])


def test_threads_write_at_the_same_time(staging, monkeypatch):
    original, both = os.pwrite, threading.Barrier(2)

    def watched(fd, data, at):
        both.wait(30)
        return original(fd, data, at)

    monkeypatch.setattr(os, "pwrite", watched)
    payloads = [[bytes([i]) * (1000 + i), b"end"] for i in range(8)]
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(staging.append, payloads))
    assert [staging.fetch(of_task) for of_task in runs] == payloads
    # one part for both, without gaps
    assert {run.part for of_task in runs for run in of_task} == {runs[0][0].part}
    spans = sorted((run.start, run.stop) for of_task in runs for run in of_task)
    assert [start for start, _ in spans] == [100, *(stop for _, stop in spans[:-1])]


def test_a_write_that_fails_beside_another(staging, monkeypatch):
    original, order = os.pwrite, [threading.Event(), threading.Event()]

    def watched(fd, data, at):
        if len(data) == 5:
            order[0].set()
            assert order[1].wait(30)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(fd, data, at)

    monkeypatch.setattr(os, "pwrite", watched)
    with ThreadPoolExecutor(1) as other:
        failing = other.submit(staging.append, [b"fails"])
        assert order[0].wait(30)
        # behind the range that is never filled
        payloads = [b"first", b"second"]
        runs = [*staging.append([payloads[0] * 2])]
        order[1].set()
        with pytest.raises(OSError, match="No space left"):
            failing.result()
    runs += staging.append([payloads[1]])
    assert staging.fetch(runs) == [payloads[0] * 2, payloads[1]]
    placement = staging.join(*staged_at(runs))
    # what nobody names is more than is left in a frame
    assert placement.positions.tolist() == [0, 10]
    assert placement.data_nbytes == 16


@pytest.mark.parametrize("locks", ["shared", "none", "local_lock=flock", "local_lock=all"])
def test_without_locks_nothing_is_published_that_a_task_may_have_open(tmp_path, monkeypatch, locks):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if locks == "none":
        monkeypatch.setattr(fcntl, "flock", flock)
    # what Linux shows of such a mount
    device, option = tmp_path.stat().st_dev, "local_lock=none" if locks == "shared" else locks
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "36 35 98:0 / / rw - ext4 /dev/root rw,localflock\n"
        f"41 35 {os.major(device)}:{os.minor(device)} /a /b rw,noatime shared:1 - nfs4 server:/a "
        f"rw,vers=4.2,{option},addr=10.0.0.1\n"
    )
    monkeypatch.setattr(system, "_MOUNTS", str(mounts))
    target = tmp_path / "a.b2nd"
    staging = staging_for(Location.of(target), sparse=False, replace=False, header_len=100)
    staging.prepare()
    (run,) = staging.append([b"x" * 5000])
    # as a task does that runs a second time
    fd = os.open(staging.directory / run.part, os.O_RDWR)
    with staging.exclusive():
        placement = staging.join(*staged_at([run]))
        staging.publish(placement, b"h" * 100, b"t" * 50)
    assert target.read_bytes() == b"h" * 100 + b"x" * 5000 + b"t" * 50
    # with locks it waits for the commit, and then finds no part: there nothing is copied
    assert os.path.samestat(os.fstat(fd), target.stat()) == (locks == "shared")
    os.close(fd)
    staging.discard()
    assert [*tmp_path.glob(".*")] == []


@pytest.mark.parametrize("stays", [True, False], ids=["a part becomes the frame", "a new file"])
def test_nothing_is_published_from_an_area_that_was_given_up(tmp_path, monkeypatch, stays):
    monkeypatch.setattr(local_staging, "is_locked", lambda _: stays)
    target = tmp_path / "a.b2nd"
    staging = staging_for(Location.of(target), sparse=False, replace=False, header_len=100)
    staging.prepare()
    runs = staging.append([b"x" * 5000])
    placement = staging.join(*staged_at(runs))
    # another run of the same write begins
    staging.discard()
    staging.make_area()
    with pytest.raises(FileNotFoundError):
        staging.publish(placement, b"h" * 100, b"t" * 50)
    assert not target.exists()


def macos(monkeypatch, fullfsync):
    """Give `fcntl` what it has on macOS; gives the names of the calls that follow."""
    original, calls = os.fsync, []

    def fcntl_(fd, command):
        assert command == 51, "F_FULLFSYNC of <sys/fcntl.h>"
        os.fstat(fd)
        calls.append("F_FULLFSYNC")
        fullfsync()

    def fsync(fd):
        calls.append("fsync")
        original(fd)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fcntl_)
    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def test_macos_waits_for_the_drive(tmp_path, monkeypatch):
    calls = macos(monkeypatch, lambda: None)
    to_b2nd(np.arange(10.0), tmp_path / "a.b2nd")
    assert set(calls) == {"F_FULLFSYNC"}
    calls.clear()
    to_b2nd(np.arange(5.0), tmp_path / "a.b2nd", mode="r+", append_axis=0)
    to_b2nd(np.arange(10.0), tmp_path / "b.b2nd", contiguous=False)
    assert set(calls) == {"F_FULLFSYNC"}
    calls.clear()
    to_b2nd(np.arange(5.0), tmp_path / "b.b2nd", mode="w", fsync=False)
    assert not calls


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EIO])
def test_a_drive_that_cannot_be_told_to_store(tmp_path, monkeypatch, code):
    def fullfsync():
        raise OSError(code, os.strerror(code))

    calls = macos(monkeypatch, fullfsync)
    if code == errno.EIO:
        with pytest.raises(OSError, match=r"a\.b2nd"):
            to_b2nd(np.arange(10.0), tmp_path / "a.b2nd")
        return
    sync(tmp_path)
    assert calls == ["F_FULLFSYNC", "fsync"]
