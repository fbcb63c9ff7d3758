"""Print pip constraints that hold every requirement of the tests at its lower bound."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
listed = [
    project["dependencies"],
    *(extras[name] for name in ("s3", "http", "cli", "plot", "demo", "xarray", "convert", "test")),
]
for requirement in (one for group in listed for one in group):
    bound = re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement)
    if bound:
        print(f"{bound[1]}=={bound[2]}")
