"""`verify` and `seal`: results, exit codes."""

from __future__ import annotations

from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import open_b2nd
from tests.edges.cli.running import rows, run
from tests.servers import HttpServer


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


@pytest.mark.parametrize("name", ["a.b2z", "group/a.b2z", "a.b2d"])
def test_stores_in_a_directory_are_verified_too(tmp_path: Path, name: str) -> None:
    folder, values = tmp_path / "folder", np.arange(1000.0)
    (folder / name).parent.mkdir(parents=True)
    b2nd_dask.to_b2nd(values, folder / "other.b2nd")
    with blosc2.TreeStore(str(folder / name), mode="w") as tree:
        tree["/first"], tree["/second"] = values, values
    result = run("verify", str(folder))
    # python-blosc2 writes no checksums
    assert result.exit_code == 3
    paths = sorted(line.partition(": ")[0] for line in result.output.splitlines())
    assert [Path(path).stem for path in paths] == ["first", "second", "other"]
    if name.endswith(".b2z"):
        (folder / name).write_bytes((folder / name).read_bytes()[:500])
        result = run("verify", str(folder))
        assert result.exit_code == 1
        assert str(folder / name) in result.stderr


@pytest.mark.parametrize("verb", ["verify", "stats"])
def test_a_member_with_a_damaged_header_is_a_failure(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "a.b2z"
    with blosc2.TreeStore(str(path), mode="w") as tree:
        tree["/first"], tree["/second"] = np.arange(1000.0), np.arange(500.0)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"b2frame") + 9] ^= 0xFF
    path.write_bytes(raw)
    result = run(verb, str(path))
    assert result.exit_code == 1
    assert f"{path}/" in result.stderr
    assert f"{path}/" in result.stdout


def test_keys_at_a_url_with_characters_of_urls(http_server: HttpServer) -> None:
    keys = ("/a?b", "/g/a#b", "/a::b", "/50%", "/a%20c", "/a d")
    with blosc2.DictStore(str(http_server.folder / "marks.b2z"), mode="w") as store:
        for number, key in enumerate(keys):
            store[key] = np.full(3, number)
    for named in (http_server.url, str(http_server.folder)):
        result = run("verify", f"{named}/marks.b2z")
        assert result.exit_code == 3, result.output
        for key in keys:
            assert f"{named}/marks.b2z{key}: no valid checksums" in result.output
    quoted = open_b2nd(f"{http_server.url}/marks.b2z/a%20d")
    assert quoted[0] == keys.index("/a d")
    with pytest.raises(FileNotFoundError, match="no member /a e in"):
        open_b2nd(f"{http_server.url}/marks.b2z/a%20e")


def test_stores_at_a_url_with_a_query(http_server: HttpServer) -> None:
    with blosc2.TreeStore(str(http_server.folder / "a.b2z"), mode="w") as tree:
        tree["/first"] = np.arange(1000.0)
    result = run("verify", f"{http_server.url}/a.b2z?token=hush")
    # python-blosc2 writes no checksums
    assert result.exit_code == 3
    assert result.output.startswith(f"{http_server.url}/a.b2z/first: no valid checksums")
    assert "hush" not in result.output


def test_commands_name_the_command_that_repairs(tmp_path: Path) -> None:
    # a path is no Python, whatever it looks like
    path = str(tmp_path / "storage_options.b2nd")
    b2nd_dask.to_b2nd(np.arange(10.0), path)
    array = blosc2.open(path, mode="a")
    array.schunk.vlmeta["b2nd.xxh3"] = "mine"
    del array
    result = run("verify", path)
    assert result.exit_code == 3
    assert result.output.startswith(f"{path}: no valid checksums: ")
    result = run("stats", "--add", path)
    assert result.exit_code == 1
    assert path in result.stderr
    assert "write new checksums by `b2nd-dask seal PATH`" in " ".join(result.stderr.split())
    assert "b2nd_dask." not in result.stderr
    assert run("seal", path).exit_code == 0
    assert run("verify", path).exit_code == 0


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


def test_seal_asks_no_server(http_server: HttpServer) -> None:
    with pytest.raises(ValueError, match="only frames in local files"):
        b2nd_dask.seal(f"{http_server.url}/a.b2nd")
    assert http_server.requests == []
