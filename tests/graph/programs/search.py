"""Draw programs, run them, and reduce those that differ."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tests.graph.programs.compare import Difference
from tests.graph.programs.grammar import draw_program
from tests.graph.programs.program import Program, check
from tests.graph.programs.reduce import reduced


def program_of(seed: int, number: int, folder: Path) -> Program:
    """Draw a program; the same for the same seed and number."""
    return draw_program(Random(f"{seed} {number}"), folder)  # noqa: S311


def search(seed: int, numbers: Iterable[int], folder: Path) -> Iterator[str]:
    """Run programs; give each that differs, reduced, as the text of a test."""
    for number in numbers:
        inner = Path(tempfile.mkdtemp(dir=folder))
        try:
            program = program_of(seed, number, inner)
            what = difference(program, inner)
            if what is not None:
                kind = what.partition(":")[0]
                program = reduced(program, lambda p: _kind(difference(p, inner)) == kind)
                yield f"# {difference(program, inner)}\n" + program.as_test(f"{seed} {number}")
        finally:
            shutil.rmtree(inner)


def _kind(what: str | None) -> str | None:
    return what and what.partition(":")[0]


def difference(program: Program, folder: Path) -> str | None:
    """What a program over frames gives otherwise than in memory, if anything."""
    try:
        check(program, folder)
    except Difference as error:
        return str(error)
    return None
