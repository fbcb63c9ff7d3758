"""`demo` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from b2nd_dask.edges.cli import demo
from tests.edges.cli.running import run


def test_demo_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(demo, "run_demo", lambda *args, **options: seen.append((*args, options)))
    assert run("demo").exit_code == 0
    assert run("demo", "--output", "elsewhere", "--overwrite").exit_code == 0
    assert seen == [
        (Path("demo-output"), {"overwrite": False}),
        (Path("elsewhere"), {"overwrite": True}),
    ]


def test_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "find_mask", lambda: None)
    result = run("demo", "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "global-land-mask is not installed" in result.output
