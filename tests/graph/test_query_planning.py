"""Frames with dask's array expressions; dask reads the option at its import."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import open_b2nd

SCRIPT = """
import logging, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import blosc2, dask, dask.array as da, numpy as np
import b2nd_dask
from b2nd_dask import from_b2nd, to_b2nd
from dask.utils import key_split
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
assert da.array_expr_enabled()
values, folder = np.load(sys.argv[1]), sys.argv[2]
dask.config.set(scheduler=sys.argv[3])

def fail(block, block_info=None):
    if block_info[0]["chunk-location"] == (3, 1) and fail.on:
        raise RuntimeError("no more")
    return block

def main():
    first = f"{folder}/first.b2nd"
    to_b2nd(values, first, chunks=(24, 17), vlmeta={"a": 1})
    read = da.from_b2nd(first)
    assert read.chunks[0][0] == 24
    np.testing.assert_allclose((read[3:50] + 1).sum().compute(), (values[3:50] + 1).sum())
    both = da.from_b2nd([first, first])
    np.testing.assert_array_equal(both[70:].compute(), np.concatenate([values, values])[70:])
    stacked = da.from_b2nd([first, first], stack=True, chunks="auto")
    np.testing.assert_allclose(stacked.sum(axis=0).compute(), values * 2)
    to_b2nd(both, f"{folder}/both.b2nd", vlmeta={})
    made = to_b2nd(read * 2, f"{folder}/named.b2nd", compute=False)
    # dask itself names the reads here
    named = {key_split(key) for key in made.__dask_graph__()}
    assert named >= {"open(named)", "write(named)", "merge(named)", "commit(named)"}, named
    kept = b2nd_dask.persist_compressed(read + 1)
    np.testing.assert_array_equal(kept[5:70:3].compute(), values[5:70:3] + 1)
    x = (from_b2nd(first) * 2)[::2]
    second = to_b2nd(x, f"{folder}/second.b2nd", chunks=(10, 60), vlmeta="keep")
    np.testing.assert_array_equal(second.compute(), values[::2] * 2)
    to_b2nd(from_b2nd(first) + 1, first, mode="w", contiguous=False)
    to_b2nd(da.from_array(values, chunks=13), first, mode="r+", append_axis=0)
    region = (slice(3, 50), slice(10, 60))
    to_b2nd(da.zeros((47, 50)) * 2, first, mode="r+", region=region)
    to_b2nd(7, first, mode="r+", region=(slice(60, 62), slice(5, 40)))
    to_b2nd(da.arange(35, chunks=9)[None], first, mode="r+", region=(slice(70, 90), slice(5, 40)))
    to_b2nd(da.arange(40, chunks=9)[None, None], first, mode="r+", region=(slice(40), 2))
    delayed = [da.ones(9, chunks=4).to_b2nd(f"{folder}/{i}.b2nd", compute=False) for i in "ab"]
    assert dask.compute(*delayed) == (f"{folder}/a.b2nd", f"{folder}/b.b2nd")
    for collection in (read.sum(), delayed[0]):
        try:
            b2nd_dask.plan(collection)
        except NotImplementedError as error:
            assert "array.query-planning" in str(error)
        else:
            raise AssertionError("a plan of nothing")
    to_b2nd(da.zeros((0, 3)), f"{folder}/empty.b2nd")
    to_b2nd(da.from_array(np.array(7.5)), f"{folder}/scalar.b2nd")

def resumed():
    x = da.from_array(values, chunks=(24, 17)).map_blocks(fail, dtype=float, name="fail")
    fail.on = True
    with dask.config.set(scheduler="sync"):
        try:
            to_b2nd(x, f"{folder}/resumed.b2nd", resume=True)
        except RuntimeError:
            fail.on = False
        to_b2nd(x, f"{folder}/resumed.b2nd", resume=True)

if __name__ == "__main__":
    if sys.argv[3] == "processes":
        # one pool, since each new process would import everything
        pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
        dask.config.set(pool=pool)
    main()
    resumed()
"""


@pytest.mark.parametrize(
    "scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_expressions_are_written(tmp_path, scheduler):
    values = np.random.default_rng(3).normal(size=(100, 60))
    np.save(tmp_path / "values.npy", values)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "values.npy"), str(tmp_path), scheduler],
        env={
            **os.environ,
            "DASK_ARRAY__QUERY_PLANNING": "True",
            "PYTHONPATH": str(Path(b2nd_dask.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    expected = np.concatenate([values + 1, values])
    expected[3:50, 10:60] = 0
    expected[60:62, 5:40] = 7
    expected[70:90, 5:40] = np.arange(35)
    expected[:40, 2] = np.arange(40)
    np.testing.assert_array_equal(open_b2nd(tmp_path / "first.b2nd")[...], expected)
    second = open_b2nd(tmp_path / "second.b2nd")
    assert second.chunks == (10, 60)
    assert dict(second.vlmeta) == {"a": 1}
    np.testing.assert_array_equal(open_b2nd(tmp_path / "resumed.b2nd")[...], values)
    assert open_b2nd(tmp_path / "scalar.b2nd")[()] == 7.5
    assert open_b2nd(tmp_path / "empty.b2nd").shape == (0, 3)
    assert not list(tmp_path.glob(".*"))
