"""A disk that is full is an error, and leaves nothing; also where others write by mapped memory."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest

from b2nd_dask import convert
from tests.edges.convert.samples import RNG
from tests.forked import run_to_end

h5py = pytest.importorskip("h5py", reason="of the extra convert")
pytest.importorskip("zarr", reason="of the extra convert")
pytest.importorskip("xarray", reason="of the extra convert")

KINDS = ["npy", "npz", "h5", "nc", "zarr.zip", "b2nd", "b2d"]


def _convert_with_limit(source: Path, target: Path) -> None:
    """Convert where no file may become longer than 1 MiB: the kernel refuses as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    _convert_to_full(source, target)


def _convert_to_full(source: Path, target: Path) -> None:
    try:
        convert(source, target)
    except OSError as error:
        print(f"OSError {error.errno}: {error}", flush=True)


def _require_error(ended, code: int, folder: Path, kept: list[str]) -> None:
    # also at the end of the process, where h5py closes what is left
    assert ended.code == 0, ended
    assert f"OSError {code}: " in ended.stdout
    assert ended.stderr == ""
    assert sorted(each.name for each in folder.iterdir()) == kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_grow(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "src.npy"
    np.save(source, RNG.random((1000, 400)))
    ended = run_to_end(_convert_with_limit, source, tmp_path / f"o.{kind}")
    _require_error(ended, errno.EFBIG, tmp_path, ["src.npy"])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file system of 1 MiB."""
    path = tmp_path_factory.mktemp("small")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full(tmp_path: Path, small: Path, kind: str) -> None:
    source = tmp_path / "src.npy"
    np.save(source, RNG.random((1000, 400)))
    ended = run_to_end(_convert_to_full, source, small / f"o.{kind}")
    _require_error(ended, errno.ENOSPC, small, [])


def test_where_space_cannot_be_allocated_it_is_written(tmp_path: Path, monkeypatch) -> None:
    def refuse(*args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    values = RNG.random((300, 40))
    np.save(tmp_path / "src.npy", values)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    convert(tmp_path / "src.npy", tmp_path / "o.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), values)
    monkeypatch.delattr(os, "posix_fallocate")
    convert(tmp_path / "src.npy", tmp_path / "again.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), values)
    # no holes, which a full disk could not fill
    for name in ("o.npy", "again.npy"):
        found = (tmp_path / name).stat()
        assert found.st_blocks * 512 >= found.st_size
