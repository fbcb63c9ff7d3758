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
    assert left.path in run("staging", str(path)).output.splitlines()[0]
    result = run("staging", str(path), "--key", "zz")
    assert result.output == "nothing is staged with the key zz\n"
    result = run("staging", str(path), "--key", "zz", "--remove")
    assert result.exit_code == 1
    assert "no staging area has the key 'zz'" in result.stderr
    with pytest.raises(FileNotFoundError, match="no staging area has the key 'zz'"):
        b2nd_dask.remove_staging(path, key="zz")
    assert run("staging", str(path), "--remove").output.splitlines()[-1] == "1 removed"
    assert b2nd_dask.list_staging(path) == []
