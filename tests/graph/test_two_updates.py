"""Two processes that change one frame at once: one does, the other hears of it; nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import B2ndError, StaleFrameError, open_b2nd, to_b2nd

VALUES = np.random.default_rng(5).normal(size=(60, 40))

#: Appends when it is told to, and says what came of it.
APPEND = """
import os, sys, time
import dask, dask.array as da, numpy as np, b2nd_dask
values = np.full((20, 40), float(sys.argv[2])) + np.arange(40)
update = b2nd_dask.to_b2nd(values, sys.argv[1], mode="r+", append_axis=0, compute=False)
print("planned", flush=True)
sys.stdin.readline()
try:
    update.compute(scheduler="sync")
except b2nd_dask.B2ndError as error:
    print(type(error).__name__, error, flush=True)
else:
    print("done", flush=True)
"""

#: Holds the frame's lock, as an update does in its commit.
HOLD = """
import sys
from pathlib import Path
from b2nd_dask.storage.read.local_reader import LocalReader
from b2nd_dask.storage.write.local_update import frame_locked
path, label = Path(sys.argv[2]), sys.argv[1]
with frame_locked(path, label, LocalReader(label).identity()):
    print("held", flush=True)
    sys.stdin.readline()
"""


def start(code, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(b2nd_dask.__file__).parents[1])},
    )
    process.stdout.readline()
    return process


@pytest.mark.parametrize("contiguous", [pytest.param(True, marks=pytest.mark.slow), False])
def test_of_two_updates_one_is_refused(tmp_path, contiguous):
    target = tmp_path / "target.b2nd"
    to_b2nd(VALUES, target, chunks=(20, 40), contiguous=contiguous)
    writers = [start(APPEND, target, number) for number in (1, 2)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = [writer.communicate(timeout=600)[0].strip() for writer in writers]
    assert sum(answer == "done" for answer in answers) == 1
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
    holder = start(HOLD, target, member)
    with pytest.raises(B2ndError, match="another process is updating") as caught:
        to_b2nd(VALUES, target, mode="r+", append_axis=0)
    assert not isinstance(caught.value, StaleFrameError)
    assert open_b2nd(target).version == before
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    to_b2nd(VALUES, target, mode="r+", append_axis=0)
    np.testing.assert_array_equal(open_b2nd(target)[...], np.concatenate([VALUES, VALUES]))
    assert list(tmp_path.iterdir()) == [target]
