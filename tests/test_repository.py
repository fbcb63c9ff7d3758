"""Files for hosts, indexes and packagers agree with pyproject.toml and `.ci/run`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import b2nd_dask

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Names of conda-forge that differ.
CONDA = {
    "blosc2": "python-blosc2",
    "dask[array]": "dask-core",
    "msgpack": "msgpack-python",
    "xxhash": "python-xxhash",
}


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_versions() -> None:
    version = b2nd_dask.__version__
    assert read("CITATION.cff")["version"] == version
    assert read(".ci/recipe.yaml")["context"]["version"] == version
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_recipe_requires_what_the_project_does() -> None:
    listed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
    required = {CONDA.get(name, name): bound for name, bound in (one.split(">=") for one in listed)}
    recipe = read(".ci/recipe.yaml")
    run = dict(one.split(" >=") for one in recipe["requirements"]["run"])
    assert run.pop("python") == "${{ python_min }}"
    assert run == required
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"


def test_each_step_of_the_checks_is_a_job() -> None:
    rows = re.findall(r"^\w+_row=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    steps = " ".join(rows).split()
    matrix = read(".github/workflows/ci.yml")["jobs"]["step"]["strategy"]["matrix"]
    assert sorted(matrix["step"]) == sorted(steps)
    assert {one["step"] for one in matrix["include"]} < set(steps)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_issue_forms_and_workflows_are_yaml(path: Path) -> None:
    assert isinstance(read(str(path.relative_to(ROOT))), dict)
