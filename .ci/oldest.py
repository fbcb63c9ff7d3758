"""Print pip constraints that hold every requirement of the tests at its lower bound."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]


def requirements(listed: list[str]) -> Iterator[str]:
    """Those listed, with those of the extras that they name."""
    for one in listed:
        own = re.fullmatch(r"b2nd-dask\[([\w,-]+)\]", one)
        if own:
            for extra in own[1].split(","):
                yield from requirements(extras[extra])
        else:
            yield one


for requirement in sorted({*requirements(project["dependencies"]), *requirements(extras["test"])}):
    bound = re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement)
    if bound:
        print(f"{bound[1]}=={bound[2]}")
