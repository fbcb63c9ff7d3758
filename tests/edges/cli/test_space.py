"""`compact` and `staging`."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from tests.edges.cli.running import run


def test_staging_in_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100 + ".b2nd")
    assert run("staging", str(path)).output == "nothing is staged\n"

    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    x = da.ones(10, chunks=5).map_blocks(fail, dtype="f8", meta=np.empty(0))
    with pytest.raises(RuntimeError, match="no"):
        b2nd_dask.to_b2nd(x, path, resume=True)
    (left,) = b2nd_dask.list_staging(path)
    line = run("staging", str(path)).output.splitlines()[0]
    assert left.path in line
    assert " UTC  " in line
    result = run("staging", str(path), "--key", "zz")
    assert result.output == "nothing is staged with the key zz\n"
    result = run("staging", str(path), "--key", "zz", "--remove")
    assert result.exit_code == 1
    assert "no staging area has the key 'zz'" in result.stderr
    with pytest.raises(FileNotFoundError, match="no staging area has the key 'zz'"):
        b2nd_dask.remove_staging(path, key="zz")
    assert run("staging", str(path), "--remove").output.splitlines()[-1] == "1 removed"
    assert b2nd_dask.list_staging(path) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two frames, one of them in a group, with an interrupted update of the other."""
    for name in ("t.b2nd", "group/u.b2nd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        b2nd_dask.to_b2nd(np.arange(1000.0), tmp_path / name, chunks=100)

    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    x = da.ones(10, chunks=5).map_blocks(fail, dtype="f8", meta=np.empty(0))
    with pytest.raises(RuntimeError, match="no"):
        b2nd_dask.to_b2nd(x, tmp_path / "t.b2nd", mode="a", append_axis=0, resume=True)
    return tmp_path


def test_all_frames_of_a_directory(folder: Path) -> None:
    frames = [str(folder / name) for name in ("group/u.b2nd", "t.b2nd")]
    lines = run("verify", str(folder)).output.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [[each, "verified"] for each in frames]
    assert run("seal", str(folder)).output.count("already has checksums") == 2
    b2nd_dask.to_b2nd(np.ones(500), frames[0], mode="r+", region=slice(0, 500))
    assert run("compact", "--dry-run", str(folder)).output.startswith("about 1.1 kB")
    assert not run("compact", str(folder)).output.startswith("0 ")
    assert run("compact", str(folder)).output == "0 bytes freed\n"
    raw = bytearray(Path(frames[0]).read_bytes())
    raw[len(raw) // 2] ^= 1
    Path(frames[0]).write_bytes(raw)
    result = run("verify", str(folder))
    assert result.exit_code == 1
    assert f"{frames[1]}: verified" in result.output


def test_a_damaged_frame_does_not_stop_at_the_others_of_a_directory(folder: Path) -> None:
    (folder / "damaged.b2nd").write_bytes(b"x" * 200)
    b2nd_dask.to_b2nd(np.ones(500), folder / "t.b2nd", mode="r+", region=slice(0, 500))
    for verb in (["compact", "--dry-run"], ["compact"]):
        result = run(*verb, str(folder))
        assert result.exit_code == 1
        assert "damaged.b2nd" in result.stderr
        assert result.stdout.startswith("about 1." if verb[1:] else "1.")
    result = run("seal", str(folder))
    assert result.exit_code == 1
    assert result.stdout.count("already has checksums") == 2


def test_staging_in_a_directory(folder: Path) -> None:
    (left,) = b2nd_dask.list_staging(folder / "t.b2nd")
    assert left.path in run("staging", str(folder)).output
    result = run("staging", str(folder), "--remove", "--key", "zz")
    assert "no staging area has the key 'zz'" in result.stderr
    assert run("staging", str(folder), "--remove", "--key", left.key).exit_code == 0
    assert run("staging", str(folder)).output == "nothing is staged\n"
    assert b2nd_dask.list_staging(folder / "t.b2nd") == []
