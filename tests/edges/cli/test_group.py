"""The group of verbs: help, completion, what is imported when, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import b2nd_dask
from b2nd_dask.edges.cli import main
from b2nd_dask.edges.cli.group import VERBS
from tests.edges.cli.running import run


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert b2nd_dask.__version__ in result.output


def test_the_help_names_what_there_is() -> None:
    text = run("--help").output
    for verb, (what, _) in VERBS.items():
        assert f"  {verb} " in text
        assert what in text
    assert "Exit codes: 0 done" in text
    assert run("-h").output == text


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_examples(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"  b2nd-dask {verb}" in result.output
    assert max(map(len, result.output.splitlines())) <= 80 + 10
    _, command, _ = main.resolve_command(click.Context(main), [verb])
    assert command.name == verb


def test_a_verb_that_is_none() -> None:
    result = run("inf")
    assert result.exit_code == 2
    assert "No such command 'inf'. Did you mean 'info'?" in result.stderr
    assert "\x1b" not in run("\x1b[31m").output
    assert run("info").exit_code == 2


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    result = run("info", "x")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: rich is not installed; install it with: pip install 'b2nd-dask[cli]'\n"
    )
    assert run("--help").exit_code == 0


def test_a_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.arange(3), path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("map", "--output", str(tmp_path / "a.png"), str(path))
    assert result.exit_code == 1
    assert "pip install 'b2nd-dask[plot]'" in result.stderr


def completions(*arguments: str) -> list[str]:
    complete = ShellComplete(main, {}, "b2nd-dask", "_B2ND_DASK_COMPLETE")
    *before, incomplete = arguments
    return [item.value or item.type for item in complete.get_completions(before, incomplete)]


def test_completion_knows_verbs_options_and_paths() -> None:
    assert completions("") == list(VERBS)
    assert completions("s") == ["stats", "seal", "staging"]
    assert completions("map", "--b") == ["--by"]
    assert completions("map", "--by", "c") == ["cbytes", "codec"]
    complete = ShellComplete(main, {}, "b2nd-dask", "_B2ND_DASK_COMPLETE")
    (item,) = complete.get_completions(["info"], "da")
    assert item.type == "file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_completion(shell: str) -> None:
    command = Path(sys.executable).with_name("b2nd-dask")
    environment = {**os.environ, "_B2ND_DASK_COMPLETE": f"{shell}_source"}
    script = subprocess.run([command], env=environment, capture_output=True, check=True).stdout
    assert b"_B2ND_DASK_COMPLETE" in script


def test_dask_has_the_group_as_a_sub_command(tmp_path: Path) -> None:
    (point,) = entry_points(group="dask_cli", name="b2nd")
    command = point.load()
    assert command.name == "b2nd"
    result = CliRunner().invoke(command, ["--help"])
    assert result.output.startswith("Usage: dask b2nd [OPTIONS] COMMAND")
    # options behind the verb are those of the verb
    b2nd_dask.to_b2nd(np.arange(4), tmp_path / "a.b2nd")
    result = CliRunner().invoke(command, ["info", "--json", str(tmp_path / "a.b2nd")])
    assert result.exit_code == 0
    assert '"shape"' in result.output
