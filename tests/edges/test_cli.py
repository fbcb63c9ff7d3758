"""The command line: what it prints, and how it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import blosc2
import numpy as np
import pytest
from click.testing import CliRunner, Result

import b2nd_dask
from b2nd_dask.edges import demo
from b2nd_dask.edges.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def rows(result: Result) -> dict[str, str]:
    """Names and texts of the printed table."""
    pairs = (line.split("  ", 1) for line in result.output.splitlines())
    return {name.strip(): text.strip() for name, text in pairs}


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert b2nd_dask.__version__ in result.output


def test_info_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    array = blosc2.zeros(
        (10, 7), dtype="f8", chunks=(4, 4), blocks=(2, 4), urlpath=str(path), meta={"who": "[me]"}
    )
    array[:4, :4] = np.arange(16.0).reshape(4, 4)
    array.schunk.vlmeta["units"] = {"t": ["K", 1]}
    result = run("info", str(path))
    assert result.exit_code == 0
    found = rows(result)
    assert found["shape"] == "10 x 7"
    assert found["dtype"] == "float64"
    assert found["chunks"] == "4 x 4, in a grid of 3 x 2"
    assert found["blocks"] == "2 x 4"
    assert found["size"].startswith("560 bytes as an array")
    assert found["chunk kinds"] == "1 stored, 5 zeros"
    assert found["metalayer 'who'"] == "'[me]'"
    assert found["vlmeta 'units'"] == "{'t': ['K', 1]}"


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda path: blosc2.nans((6,), dtype="f4", chunks=(3,), urlpath=path), "2 NaN"),
        (
            lambda path: blosc2.uninit((6,), dtype="f4", chunks=(3,), urlpath=path),
            "2 never written",
        ),
        (lambda path: blosc2.asarray(np.array(5), urlpath=path), "1 stored"),
        (lambda path: blosc2.asarray(np.empty((0, 3)), urlpath=path), "no chunks"),
    ],
    ids=["nan", "uninit", "0-d", "empty"],
)
def test_info_names_the_kinds(tmp_path: Path, make: Callable[[str], object], kinds: str) -> None:
    path = str(tmp_path / "a.b2nd")
    make(path)
    assert rows(run("info", path))["chunk kinds"] == kinds


def test_info_of_a_0d_array(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    blosc2.asarray(np.array(5), urlpath=path)
    assert rows(run("info", path))["shape"] == "0-d"


def test_info_shows_the_rest_when_a_metalayer_cannot_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    array = blosc2.asarray(np.arange(4), urlpath=str(path), meta={"bad": 12345})
    del array
    raw = path.read_bytes()
    # 0xcd is a two-byte integer; 0xc1 is never used by msgpack.
    assert raw.count(b"\xcd\x30\x39") == 1
    path.write_bytes(raw.replace(b"\xcd\x30\x39", b"\xc1\x30\x39"))
    found = rows(run("info", str(path)))
    assert found["shape"] == "4"
    assert found["metalayer 'bad'"].startswith("(cannot be shown: ")


@pytest.mark.parametrize("content", [None, b"", b"no frame at all" * 20])
def test_info_fails_with_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.b2nd"
    if content is not None:
        path.write_bytes(content)
    result = run("info", str(path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "a.b2nd" in result.output
    assert result.output.count("\n") == 1


def test_demo_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        demo, "run_demo", lambda output, *, force, console: seen.append((output, force))
    )
    assert run("demo").exit_code == 0
    assert run("demo", "--output", "elsewhere", "--force").exit_code == 0
    assert seen == [(Path("demo-output"), False), (Path("elsewhere"), True)]


def test_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "find_mask", lambda: None)
    result = run("demo", "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "pip install global-land-mask matplotlib" in result.output
