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


def test_verify_and_seal(tmp_path: Path) -> None:
    ours, theirs, gone = (str(tmp_path / f"{name}.b2nd") for name in ("ours", "theirs", "gone"))
    b2nd_dask.to_b2nd(np.arange(1000.0), ours, chunks=100)
    blosc2.asarray(np.arange(1000.0), urlpath=theirs)
    result = run("verify", ours)
    assert result.exit_code == 0
    assert result.output == f"{ours}: verified: all 10 stored chunks are as they were written\n"
    assert rows(run("info", ours))["checksums"] == "valid"
    result = run("verify", theirs, ours)
    assert result.exit_code == 3
    assert result.output.splitlines()[0] == (
        f"{theirs}: no valid checksums: it was written without checksums"
    )
    assert rows(run("info", theirs))["checksums"] == "absent: it was written without checksums"
    result = run("seal", theirs)
    assert (result.exit_code, result.output) == (0, f"{theirs}: sealed\n")
    assert run("verify", theirs, ours, "--threads", "1").exit_code == 0
    raw = bytearray(Path(ours).read_bytes())
    raw[-1] ^= 1
    Path(ours).write_bytes(raw)
    assert rows(run("info", ours))["checksums"].startswith("damaged: its trailer")
    result = run("verify", theirs, gone, ours)
    assert result.exit_code == 1
    assert gone in result.stderr
    assert run("seal", gone).exit_code == 1


def test_verify_lists_every_damaged_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=100, cparams={"clevel": 0})
    raw = bytearray(path.read_bytes())
    for chunk in (2, 7):
        raw[raw.index(np.arange(chunk * 100.0, chunk * 100 + 100).tobytes())] ^= 1
    path.write_bytes(raw)
    result = run("verify", str(path))
    assert result.exit_code == 1
    first, *others = result.output.splitlines()
    assert first == f"{path}: damaged: 2 of 10 stored chunks"
    assert [line.split(": ")[1] for line in others] == ["chunk 2", "chunk 7"]


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
