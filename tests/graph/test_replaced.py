"""Readers of a frame that is overwritten continually get one state of it, or an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import to_b2nd

#: Reads until the file `stop` appears, and once at least; every result must be of one version.
READER = """
import sys, threading
from collections import Counter
from pathlib import Path
import numpy as np
from b2nd_dask import StaleFrameError, from_b2nd, open_b2nd

path, stop = sys.argv[1], Path(sys.argv[2])
seen, wrong = Counter(), []

def whole():
    return open_b2nd(path)[...] // 1000

def part():
    frame = open_b2nd(path)
    return np.concatenate([frame[3], frame[:, 77], frame[-1]]) // 1000

def lazy():
    x = from_b2nd(path)
    return np.array([x[7].max().compute(), x.min(axis=1).compute()[5]]) // 1000

def read(how):
    while not (stop.exists() and seen["read"]):
        try:
            versions = np.unique(how())
        except StaleFrameError:
            seen["stale"] += 1
            continue
        except Exception as error:
            wrong.append(repr(error))
            return
        seen["read"] += 1
        if len(versions) != 1:
            wrong.append(f"{how.__name__}: versions {versions}")

print("begun", flush=True)
threads = [threading.Thread(target=read, args=(how,)) for how in (whole, part, part, lazy)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(seen["read"], seen["stale"])
sys.exit("; ".join(wrong[:5]) or 0)
"""


@pytest.mark.parametrize(
    ("processes", "times"),
    [pytest.param(2, 100, marks=pytest.mark.slow), pytest.param(8, 200, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("contiguous", [True, False])
def test_reads_are_of_one_version(
    tmp_path: Path, contiguous: bool, processes: int, times: int
) -> None:
    path, stop = tmp_path / "x.b2nd", tmp_path / "stop"
    noise = np.random.default_rng(0).integers(0, 1000, (60, 200))

    def write(version: int) -> None:
        to_b2nd(noise + 1000 * version, path, mode="w", chunks=(7, 90), contiguous=contiguous)

    write(0)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(b2nd_dask.__file__).parents[1],
        )
        for _ in range(processes)
    ]
    try:
        for reader in readers:
            reader.stdout.readline()
        for version in range(1, times + 1):
            write(version)
    finally:
        stop.touch()
        done = [(*reader.communicate(timeout=600), reader.returncode) for reader in readers]
    assert [code for _, _, code in done] == [0] * processes, [err for _, err, _ in done]
    reads = [int(out.split()[0]) for out, _, _ in done]
    assert min(reads) > 0
