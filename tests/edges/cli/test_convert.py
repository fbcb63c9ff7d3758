"""`b2nd-dask convert`: what it prints, and exit codes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import blosc2
import numpy as np
import pytest
from click.testing import CliRunner, Result

from b2nd_dask import open_b2nd
from b2nd_dask.edges.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("zarr", reason="of the extra convert")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(60.0).reshape(6, 10))

    def call(line: str) -> Result:
        return CliRunner().invoke(main, ["convert", *line.split()])

    return call


def test_there_and_back(run) -> None:
    for line in (
        "x.npy x.b2nd --chunks 3,5 --codec lz4 --level 2 --filter shuffle --check",
        "x.b2nd x.zarr --max-mem 100MB",
        "x.zarr y --to npy",
    ):
        result = run(line)
        assert (result.exit_code, result.stdout.strip()) == (0, line.split()[1])
    frame = blosc2.open("x.b2nd")
    assert (frame.chunks, frame.cparams.codec) == ((3, 5), blosc2.Codec.LZ4)
    np.testing.assert_array_equal(np.load("y"), np.load("x.npy"))


def test_gzip_is_zlib_in_all_formats(run) -> None:
    for target in ("x.b2nd", "x.zarr", "x.h5"):
        result = run(f"x.npy {target} --codec gzip --level 3")
        assert (result.exit_code, result.stdout.strip()) == (0, target)
    cparams = blosc2.open("x.b2nd").cparams
    assert (cparams.codec, cparams.clevel) == (blosc2.Codec.ZLIB, 3)


def test_statistics_of_all_arrays_that_can_have_them(run) -> None:
    np.savez("all.npz", x=np.arange(60.0).reshape(6, 10), name=np.array(["a", "b"]))
    assert run("all.npz all.b2d --stats").exit_code == 0
    assert run("x.npy x.b2nd --stats --chunks 3,5").exit_code == 0
    assert open_b2nd("x.b2nd").stats.max == 59
    assert open_b2nd("all.b2d/x.b2nd").stats is not None
    assert open_b2nd("all.b2d/name.b2nd").stats is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x.npy x.tiff", "choose one by --to b2nd"),
        ("x x.b2nd", "choose one by --from b2nd"),
        ("none.npy x.b2nd", "none.npy"),
        ("x.npy none/x.b2nd", "the directory of the target does not exist"),
        ("x.npy x.b2nd --chunks 2", "arrays of x.npy have 2 axes"),
        ("x.npy x.zarr --filter delta", "--codec, --level, --filter"),
        ("x.npy x.zarr --blocks 2", "--blocks is for b2nd"),
        ("x.npy x.zarr --stats", "stats= is for b2nd, b2d, b2z"),
        ("x.npy x.b2nd --dtype f4", "--dtype is only for Caterva frames"),
        ("x.npy y.npy --level 3", "--codec, --level, --filter is for"),
        ("x.npy::a x.b2nd", "no array or group is called 'a'"),
        ("x.npy there.npy", "--overwrite replaces it"),
        ("x.npy x.npy --overwrite", "source and target are the same"),
    ],
)
def test_mistakes_are_messages(run, line: str, message: str) -> None:
    if line == "x.npy x.b2nd --chunks 2":
        line += ",2,2"
    np.save("there.npy", np.arange(3))
    result = run(line)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_losses_are_warnings_on_stderr(run) -> None:
    run("x.npy x.b2nd")
    zarr = pytest.importorskip("zarr")
    zarr.create_array("u.zarr", data=np.arange(3), attributes={"units": "K"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run("u.zarr u.npy")
    assert result.exit_code == 0
    assert "Warning: u.npy cannot hold: attributes of u.zarr: units" in result.stderr
    assert result.stdout == "u.npy\n"
