"""The group of verbs: help, completion, what is imported when."""

from __future__ import annotations

import b2nd_dask
from tests.edges.cli.running import run


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert b2nd_dask.__version__ in result.output


def test_the_help_names_what_there_is() -> None:
    text = run("--help").output
    for command in ("info", "verify", "seal", "staging", "compact", "demo"):
        assert f"  {command} " in text
    assert "checksums" in text.splitlines()[2]
