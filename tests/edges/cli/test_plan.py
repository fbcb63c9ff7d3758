"""`plan`: what `b2nd_dask.plan` says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import b2nd_dask
from tests.edges.cli.running import run, told


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "a.b2nd")
    b2nd_dask.to_b2nd(np.random.default_rng(0).random((40, 30)), name, chunks=(10, 15))
    return name


def test_a_slice(path: str) -> None:
    want = b2nd_dask.plan(b2nd_dask.from_b2nd(path)[5:25:2, 3])
    found = told("plan", "--slice", "5:25:2,3", path)
    assert found["tasks"] == want.tasks
    assert found["decode_nbytes"] == want.decode_nbytes
    assert found["frames"][0]["chunks"] == want.frames[0].chunks == 3
    assert run("plan", "--slice", "5:25:2,3", path).output == f"{want}\n"


def test_a_reduction_and_a_rechunk(path: str, tmp_path: Path) -> None:
    want = b2nd_dask.plan(b2nd_dask.from_b2nd(path).mean(axis=0))
    assert run("plan", "--reduce", "mean", "--axis", "0", path).output == f"{want}\n"
    output = run("plan", "--rechunk", "40,3", "--max-mem", "1GB", path).output
    assert "writes the new frame\n" in output
    assert "40 x 3" in output
    assert [each.name for each in tmp_path.iterdir()] == ["a.b2nd"]


@pytest.mark.parametrize(
    "options",
    [
        ("--slice", "a"),
        ("--slice", "1:2:3:4"),
        ("--axis", "0"),
        ("--max-mem", "1GB"),
        ("--rechunk", "3", "--slice", "0"),
    ],
)
def test_options_that_say_nothing(path: str, options: tuple[str, ...]) -> None:
    result = run("plan", *options, path)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_an_index_out_of_bounds(path: str) -> None:
    assert run("plan", "--slice", "1,2,3", path).exit_code == 1


@pytest.mark.parametrize(
    ("values", "reduction"),
    [
        (np.arange(3).astype("M8[D]"), "mean"),
        (np.arange(3).astype("m8[D]"), "mean"),
        (np.array(["a", "bc"]), "sum"),
        (np.array(["a", "bc"]), "max"),
    ],
)
def test_a_reduction_that_elements_do_not_have(
    values: np.ndarray, reduction: str, tmp_path: Path
) -> None:
    path = tmp_path / "b.b2nd"
    b2nd_dask.to_b2nd(values, path)
    result = run("plan", "--reduce", reduction, str(path))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {path}: elements of {values.dtype} have no {reduction}\n"
    assert run("plan", "--reduce", "any", str(path)).exit_code == 0


def test_an_axis_that_is_not_there(path: str) -> None:
    error = run("plan", "--reduce", "sum", "--axis", "7", path).stderr
    assert "out of bounds for array of dimension 2" in error


def test_errors_name_the_options_of_the_command(path: str, tmp_path: Path) -> None:
    error = run("plan", "--rechunk", "0,5", path).stderr
    assert "--rechunk (0, 5) is neither a size nor one for each of 2 axes" in error
    error = run("rechunk", "--chunks", "0,5", path, str(tmp_path / "b.b2nd")).stderr
    assert "--chunks (0, 5) is neither a size nor one for each of 2 axes" in error
