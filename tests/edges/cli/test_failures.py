"""Failures: messages instead of tracebacks, no secrets, nothing that acts on a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import b2nd_dask
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
    result = run("info", url, "--storage-option", "hunter2")
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.stderr
    assert "hunter2" not in result.output
