"""Failures: messages instead of tracebacks, no secrets, nothing that acts on a terminal."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import blosc2
import click
import numpy as np
import pytest
from click.testing import CliRunner

import b2nd_dask
from b2nd_dask.edges.cli import upkeep
from b2nd_dask.edges.cli.group import as_commands
from b2nd_dask.edges.cli.shared import storage_options
from tests.edges.cli.running import rows, run
from tests.servers import S3Server


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
    # credentials that look like numbers; the server takes any
    digits = [f"--storage-option={pair}" for pair in ("key=0123", "key=123", "secret=1e5")]
    assert rows(run("info", url, *options, *digits))["shape"] == "10"
    result = run("info", url, "--storage-option", "hunter2")
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.stderr
    assert "hunter2" not in result.output


def test_numbers_and_truth_values_as_storage_options() -> None:
    given = ["max_keys=100", "bypass_cache=false", "anon=true", "account_name=12", "Secret=1e5"]

    @click.command()
    @storage_options
    def show(storage_options: dict[str, Any]) -> None:
        click.echo(json.dumps(list(storage_options.values())))

    options = [f"--storage-option={pair}" for pair in given]
    shown = CliRunner().invoke(show, options, catch_exceptions=False).output
    assert json.loads(shown) == [100, False, True, "12", "1e5"]


HOSTILE = "\x1b]0;title\x07[red]\x1b[31m\u202e[/]\r\n"


@pytest.mark.parametrize(
    "verb",
    [
        ("info",),
        ("info", "--json"),
        ("map",),
        ("map", "--by", "codec"),
        ("stats",),
        ("stats", "--json"),
        ("verify",),
        ("plan",),
        ("seal",),
        ("compact",),
        ("staging",),
    ],
)
def test_names_from_files_do_not_act_on_the_terminal(verb: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "").strip()
    folder.mkdir()
    path = folder / "a.b2nd"
    entries = {HOSTILE: HOSTILE, "dims": [HOSTILE, "x"]}
    b2nd_dask.to_b2nd(np.arange(6.0).reshape(2, 3), path, vlmeta=entries, meta={"m": HOSTILE})
    for named in (path, folder / "gone.b2nd"):
        output = run(*verb, str(named)).output
        assert output.replace("\n", "").isprintable()
        assert "\u202e" not in output


def test_keys_of_stores_do_not_act_on_the_terminal(tmp_path: Path) -> None:
    store = str(tmp_path / "s.b2z")
    with blosc2.TreeStore(store, mode="w") as tree:
        tree["/\x1b[31mred[bold]"] = np.arange(3)
    for verb in ("info", "stats"):
        output = run(verb, store).output
        assert "[31mred[bold]" in output
        assert "\x1b" not in output


def test_a_directory_and_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("info", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(3), path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # the superuser may read all files
    monkeypatch.setattr(upkeep, "verify_noting", refuse)
    result = run("verify", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {path}: Permission denied\n"


def test_an_error_of_the_target_names_the_target(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(3), path)
    target = tmp_path / "gone" / "b.b2nd"
    result = run("copy", str(path), str(target))
    assert result.exit_code == 1
    assert f"there is no folder {tmp_path / 'gone'}" in result.stderr
    assert str(path) not in result.stderr
    result = run("copy", str(path), "bogus://u:hunter2@x/y")
    assert result.exit_code == 1
    assert "hunter2" not in result.output


def test_advice_is_about_the_command(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    b2nd_dask.to_b2nd(np.arange(3), path)
    for pattern in ("memory://none/*.b2nd", str(tmp_path / "none*.b2nd")):
        error = run("info", pattern).stderr
        assert "commands expand no patterns, give each path" in error
        assert "from_b2nd" not in error
    assert "pass --sparse, or omit the /" in run("copy", path, "memory://folder/").stderr
    assert run("copy", path, "").stderr.startswith("Error: the path is empty")
    with blosc2.TreeStore(str(tmp_path / "s.b2z"), mode="w") as tree:
        tree["/x"] = np.arange(3)
    error = run("stats", "--add", str(tmp_path / "s.b2z" / "x")).stderr
    assert "Copy it to a separate file by `b2nd-dask copy MEMBER NAME.b2nd`, change" in error
    damaged = "the statistics are damaged; add_stats writes them again"
    assert as_commands(damaged).endswith("`b2nd-dask stats --add PATH` writes them again")


@pytest.mark.parametrize("verb", ["copy", "convert"])
def test_names_of_files_are_no_options(verb: str, tmp_path: Path) -> None:
    folder = tmp_path / "chunks=5"
    folder.mkdir()
    path, target = folder / "x.b2nd", folder / "max_mem=y.b2nd"
    result = run(verb, str(path), str(target))
    assert (result.exit_code, str(path) in result.stderr) == (1, True)
    for each in (path, target):
        b2nd_dask.to_b2nd(np.arange(3), each)
    result = run(verb, str(path), str(target))
    assert (result.exit_code, str(target) in result.stderr) == (1, True)
    assert "--overwrite" in result.stderr


def test_an_interrupt_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(upkeep, "verify_noting", interrupt)
    result = run("verify", str(tmp_path))
    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("look\x1b[31m at it", stacklevel=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(upkeep, "verify_noting", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run("verify", str(tmp_path))
    assert result.stderr == "Warning: look\\x1b[31m at it\nInterrupted\n"
