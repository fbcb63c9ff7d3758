"""Errors that new users meet: each names the cause and the remedy, for files and stores."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import b2nd_dask
from b2nd_dask.edges.cli import main
from tests.servers import S3Server

VALUES = np.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*arguments: str) -> str:
    """Output of a command that fails."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 1
    return " ".join(result.output.split())


def message_of(call: Callable[[], object], kind: type[Exception] = Exception) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


WRITES: dict[str, dict[str, Any]] = {
    "new": {},
    "replacing": {"mode": "w"},
    "sparse": {"contiguous": False},
    "appending": {"mode": "a", "append_axis": 0},
    "resumed": {"resume": True},
}


@pytest.mark.parametrize("how", WRITES)
def test_writing_names_the_folder_that_is_missing(tmp_path: Path, how: str) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        b2nd_dask.to_b2nd(VALUES, "there/gone/deep/a.b2nd", **WRITES[how])
    assert f"there is no folder {tmp_path / 'there' / 'gone'}" in str(caught.value)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "there/gone/deep/a.b2nd")
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


@pytest.mark.parametrize(
    "read", [b2nd_dask.open_b2nd, b2nd_dask.verify, b2nd_dask.seal, b2nd_dask.compact]
)
def test_reading_names_the_folder_that_is_missing(
    tmp_path: Path, read: Callable[[str], object]
) -> None:
    assert f"there is no folder {tmp_path / 'gone'}" in message_of(lambda: read("gone/deep/a.b2nd"))
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is not a folder" in message_of(lambda: read("file/a.b2nd"))
    # the folder is there
    missing = message_of(lambda: read("a.b2nd"), FileNotFoundError)
    assert "no folder" not in missing
    assert "not a folder" not in missing


def test_commands_name_the_folder_that_is_missing(tmp_path: Path) -> None:
    for name in ("info", "verify", "seal", "compact"):
        assert f"there is no folder {tmp_path / 'gone'}" in command(name, "gone/a.b2nd")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_tilde_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    x = b2nd_dask.to_b2nd(VALUES, kind("~/a.b2nd"))
    assert (home / "a.b2nd").is_file()
    np.testing.assert_array_equal(x.compute(), VALUES)
    np.testing.assert_array_equal(da.from_b2nd(kind("~/a.b2nd")).compute(), VALUES)
    b2nd_dask.to_b2nd(VALUES, kind("~/a.b2nd"), mode="a", append_axis=0)
    assert b2nd_dask.open_b2nd(home / "a.b2nd").shape == (6, 4)
    assert b2nd_dask.verify(kind("~/a.b2nd")).ok
    assert b2nd_dask.compact(kind("~/a.b2nd")) > 0
    assert b2nd_dask.list_staging(kind("~/a.b2nd")) == []
    result = CliRunner().invoke(main, ["info", "~/a.b2nd"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    # a file of that name, and an unknown user
    (tmp_path / "~").mkdir()
    b2nd_dask.to_b2nd(VALUES, tmp_path / "~" / "b.b2nd")
    assert b2nd_dask.open_b2nd("./~/b.b2nd").shape == (3, 4)
    b2nd_dask.to_b2nd(VALUES, "~nobody-of-this-name.b2nd")
    assert (tmp_path / "~nobody-of-this-name.b2nd").is_file()


@pytest.mark.parametrize("chunked", [True, False])
def test_strings_of_variable_length(chunked: bool) -> None:
    strings = np.array(["a", "bcd"], dtype=np.dtypes.StringDType())
    given = da.from_array(strings, chunks=1) if chunked else strings
    text = message_of(lambda: b2nd_dask.to_b2nd(given, "s.b2nd"), TypeError)
    assert "strings of variable length" in text
    assert "Python objects" not in text
    assert '.astype("U' in text
    assert '"S' in text
    # the advice works
    written = b2nd_dask.to_b2nd(strings.astype("U3"), "s.b2nd")
    np.testing.assert_array_equal(written.compute(), ["a", "bcd"])
    text = message_of(
        lambda: b2nd_dask.open_b2nd("s.b2nd", dtype=np.dtypes.StringDType()), ValueError
    )
    assert "strings of variable length" in text
    text = message_of(lambda: b2nd_dask.to_b2nd(np.array(["a", 1], object), "o.b2nd"), TypeError)
    assert "Python objects" in text


def test_a_bucket_that_is_missing(s3_server: S3Server) -> None:
    options = s3_server.storage_options
    for url in ("s3://no-such-bucket/a.b2nd", "s3://no-such-bucket/a/", "s3://no-such-bucket"):
        text = message_of(
            lambda url=url: b2nd_dask.open_b2nd(url, storage_options=options), FileNotFoundError
        )
        assert f"No such bucket: '{url.rstrip('/')}'" in text
    text = message_of(
        lambda: b2nd_dask.open_b2nd("s3://frames/none.b2nd", storage_options=options),
        FileNotFoundError,
    )
    assert "No such object: 's3://frames/none.b2nd'" in text
    for how in ({}, {"contiguous": False}, {"mode": "w"}, {"mode": "a", "append_axis": 0}):
        text = message_of(
            lambda how=how: b2nd_dask.to_b2nd(
                VALUES, "s3://no-such-bucket/a.b2nd", storage_options=options, **how
            ),
            FileNotFoundError,
        )
        assert "No such bucket: 's3://no-such-bucket/a.b2nd'" in text
    s3_server.put("something", b"")
    text = message_of(lambda: b2nd_dask.open_b2nd("s3://frames", storage_options=options))
    assert "is not a sparse frame" in text


def test_commands_show_their_own_options(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3_server.storage_options
    b2nd_dask.to_b2nd(VALUES, "s3://frames/private.b2nd", mode="w", storage_options=options)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "none")
    endpoint = {"client_kwargs": options["client_kwargs"]}
    text = message_of(
        lambda: b2nd_dask.open_b2nd("s3://frames/private.b2nd", storage_options=endpoint), OSError
    )
    assert "storage_options={'anon': True}" in text
    given = "client_kwargs={}".format(str(options["client_kwargs"]).replace("'", '"'))
    for name in ("info", "verify", "staging"):
        text = command(name, "s3://frames/private.b2nd", "--storage-option", given)
        assert "--storage-option anon=true" in text
        assert "storage_options" not in text
    (Path("a.b2nd")).touch()
    for name in ("info", "verify", "staging"):
        text = command(name, "a.b2nd", "--storage-option", "anon=true")
        assert "--storage-option" in text
        assert "storage_options" not in text
    text = command("staging", "a.b2nd", "--remove", "--key", "0123456789abcdef")
    assert "b2nd-dask staging" in text
    assert "list_staging" not in text


def make_store(kind: type, path: str) -> None:
    with kind(path, mode="w") as store:
        store["/b"] = VALUES
        store["/c"] = VALUES * 2


@pytest.mark.parametrize("kind", [blosc2.TreeStore, blosc2.DictStore])
@pytest.mark.parametrize("name", ["t.b2z", "t.b2d", "t.b2e", "memory"])
def test_stores_of_python_blosc2(tmp_path: Path, kind: type, name: str) -> None:
    path = str(tmp_path / name)
    if name == "t.b2e":
        store = blosc2.EmbedStore(path, mode="w")
        store["/b"] = VALUES
        del store
    elif name == "memory":
        import fsspec

        make_store(kind, str(tmp_path / "t.b2d"))
        path = "memory://t.b2d"
        fsspec.filesystem("memory").put(str(tmp_path / "t.b2d"), "/t.b2d", recursive=True)
    else:
        make_store(kind, path)
    text = message_of(lambda: da.from_b2nd(path), ValueError)
    assert path in text
    assert "python-blosc2" in text
    suffix = path[-4:]
    assert suffix in text
    assert "component=KEY reads an array of it" in text
    # as the message advises
    np.testing.assert_array_equal(da.from_b2nd(path, component="/b").compute(), VALUES)
    if suffix == ".b2z":
        assert "zip://NAME.b2nd::PATH" in text
        np.testing.assert_array_equal(da.from_b2nd(f"zip://b.b2nd::{path}").compute(), VALUES)
    if name != "memory":
        x = da.from_b2nd(blosc2.open(path, mode="r")["/b"])
        np.testing.assert_array_equal(x.compute(), VALUES)
        text = message_of(lambda: da.from_b2nd(blosc2.open(path, mode="r")), TypeError)
        assert "store[KEY]" in text


def test_a_folder_of_frames(tmp_path: Path) -> None:
    b2nd_dask.to_b2nd(VALUES, "b.b2nd")
    b2nd_dask.to_b2nd(VALUES, "a.b2nd")
    assert "it contains frames, such as a.b2nd" in message_of(
        lambda: da.from_b2nd(tmp_path), ValueError
    )


def test_several_paths() -> None:
    paths = ["a.b2nd", "b.b2nd"]
    for path in paths:
        b2nd_dask.to_b2nd(VALUES, path)
    unordered = (set(paths), Path().glob("*.b2nd"), np.array(paths))
    for read, several in (
        (da.from_b2nd, unordered),
        (b2nd_dask.open_b2nd, (paths, tuple(paths), *unordered)),
    ):
        for given in several:
            text = message_of(lambda read=read, given=given: read(given), TypeError)
            assert type(given).__name__ in text
            assert "from_b2nd takes a list of paths or a pattern" in text
            assert "stack=True" in text
    joined = da.from_b2nd(paths)
    np.testing.assert_array_equal(joined.compute(), np.concatenate([VALUES, VALUES]))


def test_elements_in_place_of_a_path() -> None:
    opened = blosc2.asarray(VALUES)
    for given in (VALUES, opened[1:]):
        text = message_of(lambda given=given: da.from_b2nd(given), TypeError)
        assert "a NumPy array, where the path of a frame is needed" in text
        assert "a slice of it is a NumPy array" in text


@pytest.mark.parametrize(
    "pattern", ["*.b2nd", "[ab].b2nd", "?.b2nd", "gone/*.b2nd", "memory://gone*"]
)
def test_a_pattern_of_paths(pattern: str) -> None:
    text = message_of(lambda: da.from_b2nd(pattern), FileNotFoundError)
    assert "nothing matches this pattern" in text
    text = message_of(lambda: b2nd_dask.open_b2nd(pattern), FileNotFoundError)
    assert "if it is a pattern: from_b2nd takes a list of paths or a pattern" in text
    # a name with such characters is no pattern
    b2nd_dask.to_b2nd(VALUES, "*[a].b2nd")
    np.testing.assert_array_equal(da.from_b2nd("*[a].b2nd").compute(), VALUES)
