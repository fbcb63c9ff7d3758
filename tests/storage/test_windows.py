"""Frames are read without what Windows lacks, in a process in which it is gone (tests/windows.py).

That is not Windows: paths, locks and files that are open are those of this system.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blosc2
import numpy as np
import pytest

VALUES = np.random.default_rng(0).normal(size=(60, 50))
VALUES[:20] = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames and datasets, made as usual."""
    import xarray as xr

    from b2nd_dask import to_b2nd

    path = tmp_path_factory.mktemp("windows")
    to_b2nd(VALUES, path / "a.b2nd", chunks=(20, 30))
    to_b2nd(VALUES, path / "sparse.b2nd", chunks=(20, 30), contiguous=False)
    blosc2.asarray(VALUES, chunks=(16, 16), urlpath=str(path / "upstream.b2nd"))
    (path / "in.bin").write_bytes(b"front" + (path / "a.b2nd").read_bytes())
    ds = xr.Dataset({"t": (("x", "y"), VALUES)}, {"x": np.arange(60)}, {"title": "µ"})
    ds.b2nd.to_b2nd(path / "set.b2d")
    with blosc2.TreeStore(str(path / "store.b2z"), mode="w") as store:
        store["/group/x"] = VALUES
    linked = path / "linked.b2nd"
    linked.mkdir()
    for each in (path / "sparse.b2nd").iterdir():
        (linked / each.name).symlink_to(each)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("program", ["everything_that_reads", "writes"])
def test_without_the_names(folder: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.windows", program, str(folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        # what a console of Windows shows
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def everything_that_reads(folder: str) -> None:
    # one process, which imports much
    for program in (reads, threads, commands, datasets):
        program(folder)


def reads(folder: str) -> None:
    import dask.array as da

    from b2nd_dask import StaleFrameError, from_b2nd, open_b2nd, verify
    from b2nd_dask.errors import FrameFormatError

    paths = [Path(folder, name) for name in ("a.b2nd", "sparse.b2nd", "upstream.b2nd")]
    for path in paths:
        frame = open_b2nd(path)
        np.testing.assert_array_equal(frame[...], VALUES)
        np.testing.assert_array_equal(frame[7:53:3, 11], VALUES[7:53:3, 11])
        x = from_b2nd(str(path))
        assert np.isclose((x[10:] * 2).sum().compute(), 2 * VALUES[10:].sum())
        assert not verify(path).bad
    np.testing.assert_array_equal(from_b2nd([*paths, *paths], stack=True)[4].compute(), VALUES)
    np.testing.assert_array_equal(da.from_b2nd(f"{folder}/a*.b2nd").compute(), VALUES)
    np.testing.assert_array_equal(open_b2nd(paths[0].as_uri())[...], VALUES)
    np.testing.assert_array_equal(open_b2nd(f"{folder}/in.bin", offset=5)[...], VALUES)
    np.testing.assert_array_equal(open_b2nd(f"{folder}/store.b2z/group/x")[...], VALUES)
    for name, problem in (("set.b2d", "it is a dataset"), ("linked.b2nd", "not a regular file")):
        with pytest.raises(FrameFormatError, match=problem):
            open_b2nd(Path(folder, name))[...]
    known = open_b2nd(paths[1])
    main = paths[1] / "chunks.b2frame"
    state = main.stat()
    os.utime(main, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    with pytest.raises(StaleFrameError):
        known[...]


def threads(folder: str) -> None:
    from b2nd_dask import open_b2nd

    for name in ("a.b2nd", "sparse.b2nd"):
        frame, together = open_b2nd(Path(folder, name)), threading.Barrier(4)

        def read(number: int, frame=frame, together=together) -> None:
            together.wait()
            for at in range(number, 60, 4):
                np.testing.assert_array_equal(frame[at], VALUES[at])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(4)))


def commands(folder: str) -> None:
    from click.testing import CliRunner

    from b2nd_dask.edges.cli import main

    for command in ("info", "verify", "map", "stats", "staging"):
        for name in ("a.b2nd", "sparse.b2nd"):
            main([command, str(Path(folder, name))], standalone_mode=False)
    main(["plan", str(Path(folder, "a.b2nd"))], standalone_mode=False)
    failed = CliRunner().invoke(main, ["compact", str(Path(folder, "a.b2nd"))])
    assert failed.exit_code == 1
    assert "on Windows" in " ".join(failed.output.split())


def datasets(folder: str) -> None:
    import xarray as xr

    for chunks in (None, {}):
        ds = xr.open_dataset(Path(folder, "set.b2d"), engine="b2nd", chunks=chunks)
        np.testing.assert_array_equal(ds.t[5:9].values, VALUES[5:9])
        assert ds.attrs == {"title": "µ"}
        ds = xr.open_dataset(Path(folder, "store.b2z"), engine="b2nd", group="group")
        np.testing.assert_array_equal(ds.x.values, VALUES)


def writes(folder: str) -> None:
    import xarray as xr

    import b2nd_dask

    new, old, sparse = (str(Path(folder, name)) for name in ("new", "a.b2nd", "sparse.b2nd"))
    ds = xr.Dataset({"t": (("x", "y"), VALUES)})
    x = b2nd_dask.from_b2nd(old)
    calls = (
        lambda: b2nd_dask.to_b2nd(VALUES, new),
        lambda: b2nd_dask.to_b2nd(x, new, contiguous=False),
        lambda: b2nd_dask.to_b2nd(x, new, compute=False),
        lambda: b2nd_dask.to_b2nd(VALUES, old, mode="w"),
        lambda: b2nd_dask.to_b2nd(VALUES, old, mode="a", append_axis=0),
        lambda: b2nd_dask.to_b2nd(VALUES[:5], sparse, mode="r+", region=np.s_[:5]),
        lambda: b2nd_dask.create(new, shape=(4,), dtype="f8"),
        lambda: b2nd_dask.rechunk(old, new, chunks=(5, 5)),
        lambda: b2nd_dask.seal(Path(folder, "upstream.b2nd")),
        lambda: b2nd_dask.add_stats(old),
        lambda: b2nd_dask.compact(old),
        lambda: b2nd_dask.convert(old, f"{new}.npy"),
        lambda: b2nd_dask.convert(old, f"{new}.zarr"),
        lambda: ds.b2nd.to_b2nd(f"{new}.b2d"),
        lambda: ds.b2nd.to_b2nd(f"{folder}/set.b2d", mode="a"),
    )
    before = sorted(os.walk(folder))
    for number, call in enumerate(calls):
        with pytest.raises(OSError, match=r"on Windows .* can be read but not written") as caught:
            call()
        assert caught.value.errno == errno.ENOTSUP, number
        assert folder in caught.value.filename
    assert sorted(os.walk(folder)) == before
    assert b2nd_dask.list_staging(old) == []
    # what is no local path
    b2nd_dask.to_b2nd(x, "memory://new.b2nd", chunks=(20, 30))
    np.testing.assert_array_equal(b2nd_dask.from_b2nd("memory://new.b2nd").compute(), VALUES)
    np.testing.assert_array_equal(b2nd_dask.persist_compressed(x).compute(), VALUES)
