"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner, Result

import b2nd_dask
from b2nd_dask.edges.cli import demo, main
from b2nd_dask.edges.demo import land_cover
from tests.servers import HttpServer, S3Server


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
    assert rows(run("info", ours))["checksums"] == "present (not verified: `b2nd-dask verify PATH`)"
    result = run("verify", theirs, ours)
    assert result.exit_code == 3
    assert result.output.splitlines()[0] == (
        f"{theirs}: no valid checksums: it was written without checksums"
    )
    assert rows(run("info", theirs))["checksums"] == "absent: it was written without checksums"
    result = run("seal", theirs)
    assert (result.exit_code, result.output) == (0, f"{theirs}: checksums added\n")
    result = run("seal", theirs)
    assert result.exit_code == 0
    assert result.output.startswith(f"{theirs}: already has checksums; `b2nd-dask verify PATH`")
    assert run("verify", theirs, ours, "--threads", "1").exit_code == 0
    raw = bytearray(Path(ours).read_bytes())
    raw[-1] ^= 1
    Path(ours).write_bytes(raw)
    assert rows(run("info", ours))["checksums"].startswith("damaged: its trailer")
    result = run("verify", theirs, gone, ours)
    assert result.exit_code == 1
    assert gone in result.stderr
    assert run("seal", gone).exit_code == 1


def test_commands_name_the_command_that_repairs(tmp_path: Path) -> None:
    # a path is no Python, whatever it looks like
    path = str(tmp_path / "storage_options.b2nd")
    b2nd_dask.to_b2nd(np.arange(10.0), path)
    array = blosc2.open(path, mode="a")
    array.schunk.vlmeta["b2nd.xxh3"] = "mine"
    del array
    result = run("verify", path)
    assert result.exit_code == 1
    assert result.output.startswith(f"{path}: damaged: ")
    assert "then call `b2nd-dask seal PATH`" in result.output
    assert "b2nd_dask." not in result.output
    assert "then call `b2nd-dask seal PATH`" in " ".join(run("info", path).output.split())
    result = run("seal", path)
    assert result.exit_code == 1
    assert path in result.stderr


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


@pytest.mark.parametrize("command", ["info", "verify", "staging", "seal", "compact"])
@pytest.mark.parametrize(
    "url",
    [
        "bogus://u:hunter2@x/y",
        "http://",
        "s3://",
        "github://a",
        "s3://AK:hunter2@bucket/x",
        "http:/u:hunter2@host/x",
    ],
)
def test_what_fails_is_told_without_a_traceback(
    command: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    result = run(command, url)
    if command != "staging" or not url.startswith("http"):
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: ")
    assert "hunter2" not in result.output


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    result = run("info", "gs://b/x")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: gs://b/x: ")
    assert "gcsfs" in result.stderr


def test_storage_options_on_the_command_line(s3_server: S3Server, tmp_path: Path) -> None:
    target = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(10), target)
    url = s3_server.put("cli.b2nd", target.read_bytes())
    pairs = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in s3_server.storage_options.items()
    ]
    options = [text for pair in pairs for text in ("--storage-option", pair)]
    assert rows(run("info", url, *options))["shape"] == "10"
    assert run("verify", url, *options).exit_code == 0
    result = run("info", url, "--storage-option", "hunter2")
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.stderr
    assert "hunter2" not in result.output


def test_seal_asks_no_server(http_server: HttpServer) -> None:
    with pytest.raises(ValueError, match="only frames in local files are sealed"):
        b2nd_dask.seal(f"{http_server.url}/a.b2nd")
    assert http_server.requests == []


@pytest.mark.parametrize("contiguous", [True, False])
def test_info_tells_how_it_is_compressed(tmp_path: Path, contiguous: bool) -> None:
    path = str(tmp_path / "a.b2nd")
    cparams = {"codec": "lz4", "clevel": 3, "filters": ["trunc_prec", "bitshuffle"]}
    cparams["filters_meta"] = [10, 0]
    b2nd_dask.to_b2nd(np.arange(10.0), path, cparams=cparams, contiguous=contiguous)
    found = rows(run("info", path))
    assert found["layout"] == ("contiguous" if contiguous else "sparse")
    assert found["codec"] == "lz4, level 3"
    assert found["filters"] == "trunc_prec, bitshuffle"
    theirs, ours = blosc2.open(path).cparams, b2nd_dask.open_b2nd(path).cparams
    assert dataclasses.replace(theirs, blocksize=0) == ours
    again = str(tmp_path / "b.b2nd")
    b2nd_dask.to_b2nd(np.arange(10.0), again, cparams=ours)
    assert b2nd_dask.open_b2nd(again).cparams == ours


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


def test_the_help_names_what_there_is() -> None:
    text = run("--help").output
    for command in ("info", "verify", "seal", "staging", "compact", "demo"):
        assert f"  {command} " in text
    assert "checksums" in text.splitlines()[2]


def test_demo_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        demo, "run_demo", lambda output, *, force, console: seen.append((output, force))
    )
    assert run("demo").exit_code == 0
    assert run("demo", "--output", "elsewhere", "--force").exit_code == 0
    assert seen == [(Path("demo-output"), False), (Path("elsewhere"), True)]


def test_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(land_cover, "find_mask", lambda: None)
    result = run("demo", "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "pip install global-land-mask matplotlib" in result.output
