"""Runs commands in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from b2nd_dask.edges.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def rows(result: Result) -> dict[str, str]:
    """Names and texts of the printed table."""
    pairs = (line.split("  ", 1) for line in result.output.splitlines())
    return {name.strip(): text.strip() for name, text in pairs}


def told(*arguments: str) -> Any:
    """What a command prints as JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
