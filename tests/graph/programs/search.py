"""Draw programs, run them, and reduce those that differ."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from tests.graph.programs.compare import Difference
from tests.graph.programs.grammar import draw_program
from tests.graph.programs.program import Program, check
from tests.graph.programs.reduce import reduced
from tests.graph.programs.ways import closing_client


def program_of(
    seed: int, number: int, folder: Path, front_end: str = "dask", *, distributed: bool = False
) -> Program:
    """Draw a program; the same for the same seed, number and options."""
    return draw_program(Random(f"{seed} {number}"), folder, front_end, distributed=distributed)


def search(
    seed: int,
    numbers: Iterable[int],
    folder: Path,
    front_end: str = "dask",
    *,
    distributed: bool = False,
) -> Iterator[str]:
    """Run programs; give each that differs, reduced, as the text of a test.

    With `distributed` half of them are computed by a small cluster, which is made once.
    """
    with closing_client():
        for number in numbers:
            inner = Path(tempfile.mkdtemp(dir=folder))
            try:
                program = program_of(seed, number, inner, front_end, distributed=distributed)
                what = difference(program, inner)
                if what is not None:
                    program = reduced(program, partial(_differs_alike, what, inner))
                    what = difference(program, inner) or f"not always: {what}"
                    yield f"    # {what}\n" + program.as_test(f"{seed} {number}")
            finally:
                shutil.rmtree(inner)


def _differs_alike(what: str, folder: Path, program: Program) -> bool:
    try:
        found = difference(program, folder)
    except KeyError:  # nothing makes an output any more
        return False
    return found is not None and found.partition(":")[0] == what.partition(":")[0]


def difference(program: Program, folder: Path) -> str | None:
    """What a program over frames gives otherwise than in memory, if anything."""
    try:
        check(program, folder)
    except Difference as error:
        return str(error)
    return None
