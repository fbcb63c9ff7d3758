"""Recycled memory: never shared by two arrays, bounded, and safe among threads."""

import gc
import os
import platform
import resource
import subprocess
import sys
import threading
import time
import warnings
import weakref

import dask
import distributed  # noqa: F401 - for its configuration
import numpy as np
import pytest

from b2nd_dask import open_b2nd, to_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.buffers import (
    MAX_FREE_NBYTES,
    MAX_SCRATCH_NBYTES,
    POOLED_FROM,
    Pool,
    Scratch,
    result_pool,
)
from tests.forked import run_forked

BYTE = np.dtype("u1")


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = Pool()
    array = pool.empty((POOLED_FROM // 8, 8), BYTE)
    place = array.ctypes.data
    view = array[5:, ::2].view("i1").T
    del array
    gc.collect()
    assert pool.free_nbytes == 0
    other = pool.empty((POOLED_FROM,), BYTE)
    assert other.ctypes.data != place
    del view
    gc.collect()
    assert pool.free_nbytes == POOLED_FROM
    assert pool.empty((POOLED_FROM // 8,), np.dtype("f8")).ctypes.data == place


def test_no_more_than_the_bound_is_kept():
    pool = Pool(max_free_nbytes=3 * POOLED_FROM)
    arrays = [pool.empty((POOLED_FROM,), BYTE) for _ in range(10)]
    assert pool.free_nbytes == 0
    arrays.clear()
    gc.collect()
    assert pool.free_nbytes == 3 * POOLED_FROM


def test_sizes_that_nobody_asks_for_make_room():
    pool = Pool(max_free_nbytes=4 * POOLED_FROM)
    old = [pool.empty((POOLED_FROM,), BYTE) for _ in range(4)]
    old.clear()
    assert pool.free_nbytes == 4 * POOLED_FROM
    array = pool.empty((2 * POOLED_FROM,), BYTE)
    del array
    assert pool.free_nbytes == 4 * POOLED_FROM
    # it waits there in the place of two others
    again = pool.empty((2 * POOLED_FROM,), BYTE)
    assert pool.free_nbytes == 4 * POOLED_FROM - again.nbytes


def test_one_array_larger_than_the_bound_is_used_again():
    pool = Pool(max_free_nbytes=POOLED_FROM)
    place = pool.empty((2 * POOLED_FROM,), BYTE).ctypes.data
    assert pool.empty((2 * POOLED_FROM,), BYTE).ctypes.data == place
    assert pool.free_nbytes == 2 * POOLED_FROM
    small = pool.empty((POOLED_FROM,), BYTE)
    del small
    assert pool.free_nbytes == POOLED_FROM


def test_a_much_larger_slab_is_not_wasted_on_a_small_array():
    pool = Pool()
    pool.empty((10 * POOLED_FROM,), BYTE)
    gc.collect()
    before = pool.free_nbytes
    array = pool.empty((POOLED_FROM,), BYTE)
    assert pool.free_nbytes == before
    assert array.nbytes == POOLED_FROM


def test_threads_never_share_memory():
    pool, errors = Pool(), []

    def work(number):
        for step in range(100):
            mine = pool.empty((POOLED_FROM + 64 * (step % 7),), BYTE)
            # an element of each page, so that this costs no time
            mine[::4096] = number
            kept = mine[::4096]
            del mine
            if (kept != number).any():
                errors.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    # also where several threads gave back at once
    assert pool.free_nbytes <= MAX_FREE_NBYTES


def test_scratch_is_lent_once_at_a_time():
    scratch = Scratch()
    with scratch.borrow(100) as outer, scratch.borrow(100) as inner:
        assert not np.shares_memory(outer, inner)
    with scratch.borrow(50) as again:
        assert again.nbytes == 50


def test_a_thread_keeps_few_buffers_of_bounded_size():
    scratch = Scratch()

    def kept():
        return sorted(one.nbytes for one in scratch.kept)

    for nbytes in (10, 1000, 500, 2000):
        with scratch.borrow(nbytes):
            pass
    # the largest serves all that are not borrowed at a time
    assert kept() == [2000]
    with scratch.borrow(100), scratch.borrow(300):
        pass
    assert kept() == [300, 2000]
    half = MAX_SCRATCH_NBYTES // 2 + 1
    with scratch.borrow(half), scratch.borrow(half), scratch.borrow(half):
        pass
    assert sum(kept()) <= MAX_SCRATCH_NBYTES


def _wait_until(is_true):
    for _ in range(3000):
        if is_true():
            return
        time.sleep(0.01)
    raise AssertionError("still not so after half a minute")


def test_buffers_of_all_threads_go_when_nothing_was_borrowed_for_a_while():
    scratch, lent, end = Scratch(idle_seconds=0.05), threading.Event(), threading.Event()
    gone = []

    def work():
        with scratch.borrow(1000) as buffer:
            gone.append(weakref.ref(buffer.base))
        del buffer
        lent.set()
        end.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert lent.wait(30)
    for _ in range(2):  # again, after the next use
        with scratch.borrow(2000) as mine:
            gone.append(weakref.ref(mine.base))
            _wait_until(lambda: gone[0]() is None and not scratch._idle.is_watched)
            # what is borrowed for longer stays borrowed
            with scratch.borrow(2000) as other:
                assert not np.shares_memory(mine, other)
        del mine, other
        _wait_until(lambda: gone[-1]() is None)
    end.set()
    thread.join()


def test_buffers_that_come_back_late_are_not_kept():
    scratch = Scratch(idle_seconds=0.05)
    with scratch.borrow(2000) as mine:
        gone = weakref.ref(mine.base)
        _wait_until(lambda: not scratch._idle.is_watched)
    del mine
    assert gone() is None


def test_the_pool_is_emptied_when_nothing_was_asked_for_in_a_while():
    pool = Pool(idle_seconds=3600)
    array = pool.empty((POOLED_FROM,), BYTE)
    del array
    assert pool.free_nbytes == POOLED_FROM
    pool._idle.end()
    assert pool.free_nbytes == 0


def test_what_comes_back_to_an_idle_pool_is_not_kept():
    pool = Pool(idle_seconds=0.05)
    array = pool.empty((POOLED_FROM,), BYTE)
    _wait_until(lambda: not pool._idle.is_watched)
    del array
    assert pool.free_nbytes == 0


def _fork_after_a_borrow():
    with Scratch(idle_seconds=3600).borrow(100), warnings.catch_warnings():
        # of threads, which a forked process does not have
        warnings.simplefilter("error")
        pid = os.fork()
        if not pid:
            os._exit(0)
    os.waitpid(pid, 0)
    return [thread.name for thread in threading.enumerate()]


def test_a_process_that_forks_has_no_thread_of_ours():
    assert run_forked(_fork_after_a_borrow) == ["MainThread"]


def test_where_no_thread_can_be_started_nothing_is_kept(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool = Pool()
    array = pool.empty((POOLED_FROM,), BYTE)
    del array
    assert pool.free_nbytes == 0
    scratch = Scratch()
    with scratch.borrow(100):
        pass
    assert not scratch.kept


#: The settings of glibc with which distributed starts its workers.
_WORKER_SETTINGS = dask.config.get("distributed.nanny.pre-spawn-environ")
_TRANSFORMS = """
import resource, sys
import dask
from b2nd_dask import from_b2nd, to_b2nd

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

source, target = sys.argv[1:]
dask.config.set(num_workers=2)
for _ in range(3):
    before = faults()
    to_b2nd(from_b2nd(source) * 2 + 1, target, mode="w", fsync=False)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep other pages")
@pytest.mark.parametrize(
    ("settings", "most"), [({}, 1 / 8), (_WORKER_SETTINGS, 1)], ids=["default", "distributed"]
)
def test_a_transform_of_8_mb_chunks_uses_its_pages_again(tmp_path, settings, most):
    chunk, chunks = 1 << 20, 16
    values = np.random.default_rng(0).normal(0, 1e6, chunks * chunk).round()
    to_b2nd(values, tmp_path / "source.b2nd", chunks=(chunk,))
    # in a process with known settings of glibc, whose heaps have had no larger arrays
    known = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(known)}
    environment |= {name: str(value) for name, value in settings.items()}
    command = [
        sys.executable,
        "-c",
        _TRANSFORMS,
        tmp_path / "source.b2nd",
        tmp_path / "target.b2nd",
    ]
    found = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    pages = values.nbytes // resource.getpagesize()
    assert int(found.stdout) < pages * most


def test_reads_of_one_frame_and_of_joined_frames_share_a_pool(tmp_path):
    values = np.resize(np.arange(251, dtype="u1"), (2, POOLED_FROM // 2))
    frames = []
    for name, part in {"whole": values, "first": values[:1], "second": values[1:]}.items():
        to_b2nd(part, tmp_path / name, chunks=(1, values.shape[1] // 4), cparams={"clevel": 1})
        frames.append(reference_of(open_b2nd(tmp_path / name)))
    np.testing.assert_array_equal(frames[0].read(()), values)
    gc.collect()
    before = result_pool.free_nbytes
    elements = JoinedReference(frames[1:], 0).read_axes((range(2), range(values.shape[1])))
    assert result_pool.free_nbytes <= before - POOLED_FROM
    np.testing.assert_array_equal(elements, values)
