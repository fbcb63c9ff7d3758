"""Two processes that change one frame at once: one does, the other hears of it; nothing is lost."""

import os
import signal

import blosc2
import numpy as np
import pytest

from b2nd_dask import B2ndError, StaleFrameError, open_b2nd, to_b2nd
from b2nd_dask.storage.read.local_reader import LocalReader
from b2nd_dask.storage.write.local_update import frame_locked
from tests.forked import answer, started

VALUES = np.random.default_rng(5).normal(size=(60, 40))


def append(target, number, told):
    """Append when it is told to, and say what came of it."""
    values = np.full((20, 40), float(number)) + np.arange(40)
    update = to_b2nd(values, target, mode="r+", append_axis=0, compute=False)
    told.send("planned")
    told.recv()
    try:
        update.compute(scheduler="sync")
    except B2ndError as error:
        told.send(f"{type(error).__name__} {error}")
    else:
        told.send("done")


def hold(target, path, told):
    """Hold the frame's lock, as an update does in its commit."""
    label = str(target)
    with frame_locked(path, label, LocalReader(label).identity()):
        told.send("held")
        told.recv()


@pytest.mark.parametrize("contiguous", [pytest.param(True, marks=pytest.mark.slow), False])
def test_of_two_updates_one_is_refused(tmp_path, contiguous):
    target = tmp_path / "target.b2nd"
    to_b2nd(VALUES, target, chunks=(20, 40), contiguous=contiguous)
    with started(append, target, 1) as (_, one), started(append, target, 2) as (_, two):
        assert [answer(writer) for writer in (one, two)] == ["planned", "planned"]
        for writer in (one, two):
            writer.send("go")
        answers = [answer(writer) for writer in (one, two)]
    assert answers.count("done") == 1
    winner = answers.index("done") + 1
    assert answers[2 - winner].startswith(("StaleFrameError", "B2ndError"))
    assert str(target) in answers[2 - winner]
    new = np.full((20, 40), float(winner)) + np.arange(40)
    expected = np.concatenate([VALUES, new])
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)


@pytest.mark.parametrize("contiguous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_lock_of_a_dead_process_is_gone(tmp_path, contiguous):
    target = tmp_path / "target.b2nd"
    to_b2nd(VALUES, target, chunks=(20, 40), contiguous=contiguous)
    before = open_b2nd(target).version
    member = target if contiguous else target / "chunks.b2frame"
    with started(hold, target, member) as (holder, connection):
        assert answer(connection) == "held"
        with pytest.raises(B2ndError, match="another process is updating") as caught:
            to_b2nd(VALUES, target, mode="r+", append_axis=0)
        assert not isinstance(caught.value, StaleFrameError)
        assert open_b2nd(target).version == before
        os.kill(holder.pid, signal.SIGKILL)
    to_b2nd(VALUES, target, mode="r+", append_axis=0)
    np.testing.assert_array_equal(open_b2nd(target)[...], np.concatenate([VALUES, VALUES]))
    assert list(tmp_path.iterdir()) == [target]
