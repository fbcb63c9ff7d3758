"""A frame that is open already is not parsed again, and never taken for what has replaced it."""

import os
import pickle
import shutil
import time
from dataclasses import replace

import blosc2
import numpy as np
import pytest

from b2nd_dask import ChecksumError, FrameFormatError, StaleFrameError, from_b2nd, open_b2nd, seal
from b2nd_dask.storage.read import local_reader
from tests.counting import bytes_read

LONG_AGO = time.time_ns() - 10**10
ARRAY = np.arange(400).reshape(20, 20)


def write(path, array=ARRAY, *, contiguous=True):
    options = {"chunks": (5, 10), "blocks": (5, 5), "cparams": {"clevel": 0}}
    stored = blosc2.asarray(array, urlpath=str(path), contiguous=contiguous, **options)
    stored.schunk.vlmeta["first"] = int(array[0, 0])
    dated(path, LONG_AGO)
    return path


def dated(path, moment):
    for one in [path, *path.glob("*")] if path.is_dir() else [path]:
        os.utime(one, ns=(moment, moment))


def elements(path):
    return open_b2nd(path)[...]


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def frame(tmp_path, request):
    return write(tmp_path / "x.b2nd", contiguous=request.param)


@pytest.fixture
def fine_clock(monkeypatch):
    """Do not wait until a file is older than the steps of clocks: here they are fine."""
    monkeypatch.setattr(local_reader, "_CLOCK_STEP_NS", 0)


def test_the_metadata_are_read_once(frame, fine_clock):
    assert bytes_read(lambda: open_b2nd(frame))[0] > 0
    assert bytes_read(lambda: open_b2nd(frame))[0] == 0
    assert open_b2nd(frame, verify=False)[3, 7] == ARRAY[3, 7]


def test_once_more_if_it_was_young(frame, request):
    open_b2nd(frame)
    assert bytes_read(lambda: open_b2nd(frame))[0] > 0
    request.getfixturevalue("fine_clock")
    assert bytes_read(lambda: open_b2nd(frame))[0] > 0
    assert bytes_read(lambda: open_b2nd(frame))[0] == 0


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "sparse"])
def test_another_frame_of_the_same_size_and_time(tmp_path, frame, contiguous):
    np.testing.assert_array_equal(elements(frame), ARRAY)
    other = write(tmp_path / "other.b2nd", ARRAY + 1, contiguous=contiguous)
    (shutil.rmtree if frame.is_dir() else os.unlink)(frame)
    other.rename(frame)
    np.testing.assert_array_equal(elements(frame), ARRAY + 1)


def test_a_copy_over_it_that_keeps_size_and_times(tmp_path, fine_clock):
    path = write(tmp_path / "x.b2nd")
    np.testing.assert_array_equal(elements(path), ARRAY)
    other = write(tmp_path / "other.b2nd", ARRAY + 1)
    # longer than a step of the clock that the system stamps changes by
    time.sleep(0.05)
    before = path.stat()
    shutil.copy2(other, path)
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    np.testing.assert_array_equal(elements(path), ARRAY + 1)


def test_a_change_in_the_same_step_of_the_clock(tmp_path):
    path = write(tmp_path / "x.b2nd")
    other = write(tmp_path / "other.b2nd", ARRAY + 1).read_bytes()
    now = time.time_ns()
    dated(path, now)
    open_b2nd(path)
    with path.open("r+b") as file:
        file.write(other)
    dated(path, now)
    opened = open_b2nd(path)
    assert opened.vlmeta["first"] == 1
    np.testing.assert_array_equal(opened[...], ARRAY + 1)


def test_a_copy_in_the_same_step_of_the_clock(tmp_path, monkeypatch):
    def coarse(state):
        found = fine(state)
        return replace(found, changed=found.changed // 10**9 * 10**9)

    fine = local_reader.identity_of
    monkeypatch.setattr(local_reader, "identity_of", coarse)
    path = write(tmp_path / "x.b2nd")
    other = write(tmp_path / "other.b2nd", ARRAY + 1)
    open_b2nd(path)
    shutil.copy2(other, path)
    assert open_b2nd(path).vlmeta["first"] == 1


def test_a_later_change_of_python_blosc2(frame):
    open_b2nd(frame)
    changed = blosc2.open(str(frame), mode="a")
    changed[3, 7] = 1000
    assert elements(frame)[3, 7] == 1000


def test_what_is_no_frame_any_more(frame):
    open_b2nd(frame)
    (shutil.rmtree if frame.is_dir() else os.unlink)(frame)
    with pytest.raises(FileNotFoundError):
        open_b2nd(frame)
    frame.mkdir()
    with pytest.raises(FrameFormatError):
        open_b2nd(frame)


def test_members_of_an_embed_store(tmp_path):
    path = tmp_path / "store.b2e"
    for value in (1, 2):
        path.unlink(missing_ok=True)
        store = blosc2.EmbedStore(str(path), mode="w")
        store["/x"] = np.full((5, 5), value)
        del store
        # of one size and one time, which is too young to tell them apart
        dated(path, time.time_ns())
        assert (open_b2nd(path, component="/x")[...] == value).all()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_change_whose_time_is_set_back(tmp_path, sealed):
    path = write(tmp_path / "x.b2nd")
    if sealed:
        seal(path)
    x = from_b2nd(path)
    np.testing.assert_array_equal(x.compute(), ARRAY)
    state, content = path.stat(), path.read_bytes()
    begin = content.index(ARRAY[:5, :5].tobytes())
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(np.full(5, -1, ARRAY.dtype).tobytes())
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    # of a graph that was built before, here and where it is unpickled
    for old in (x, pickle.loads(pickle.dumps(x))):
        with pytest.raises(ChecksumError if sealed else StaleFrameError, match=r"x\.b2nd"):
            old.compute(scheduler="sync")


def test_permissions_and_names_leave_a_sealed_frame_as_it_is(tmp_path):
    path = write(tmp_path / "x.b2nd")
    seal(path)
    x = from_b2nd(path)
    path.chmod(0o600)
    os.link(path, tmp_path / "other.b2nd")
    for _ in range(2):
        np.testing.assert_array_equal(x.compute(), ARRAY)
