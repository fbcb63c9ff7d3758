"""Run batches of mutated frames and collect what they find."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.fuzz.files import Files, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Finding(NamedTuple):
    """A case that ended otherwise than with values or a documented error."""

    number: int
    what: str


def store_seeds(seeds: dict[str, Files], path: Path) -> Path:
    """Store seeds for the processes that mutate them."""
    texts = {name: to_text(files) for name, files in seeds.items()}
    path.write_text(json.dumps(texts), "ascii")
    return path


def run_batch(seeds: Path, seed: int, first: int, count: int) -> Iterator[Finding]:
    """Run cases in processes of their own, going on behind each case that ends one."""
    stop = first + count
    while first < stop:
        process = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.fuzz.probe",
                str(seeds),
                *map(str, (seed, first, stop - first)),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        yield from (Finding(line["found"], line["what"]) for line in lines if "found" in line)
        if any("finished" in line for line in lines):
            return
        begun = [line["begun"] for line in lines if "begun" in line]
        if not begun:
            raise RuntimeError(process.stderr[-3000:])
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        yield Finding(begun[-1], f"the process ended: {how} {process.stderr[-300:]}")
        first = begun[-1] + 1
