"""Random programs have equal results over frames and over arrays in memory.

Values, dtypes, shapes, masks and errors are equal, frames stay unchanged, and results are
writable. A program that a run of ``pytest -m long tests/graph/test_programs.py`` or ``python -m
tests.graph.programs --seconds 3600`` finds with its fresh seeds is printed as an entry of
`FOUND` in `test_found_programs`.
"""

import inspect
import secrets
from collections import Counter
from random import Random

import pytest

from b2nd_dask import from_b2nd
from b2nd_dask.graph.optimize.optimizer import RULE_NAMES
from tests.graph.programs.grammar import Drawing
from tests.graph.programs.rules import rules_fired
from tests.graph.programs.search import program_of, search

SEED = 14
PROGRAMS = 120
BATCHES = 6

#: dask and NumPy also warn for arrays in memory.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "batch", [pytest.param(b, marks=[pytest.mark.slow] if b % 2 else []) for b in range(BATCHES)]
)
def test_programs(tmp_path, batch):
    found = list(search(SEED, range(batch, PROGRAMS, BATCHES), tmp_path))
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(4))
def test_programs_of_fresh_seeds(tmp_path, batch):
    seed = secrets.randbelow(1 << 32)
    found = list(search(seed, range(1000), tmp_path))
    assert not found, f"seed {seed}\n" + "\n".join(found)


@pytest.mark.slow
def test_programs_on_a_cluster(tmp_path):
    found = list(search(SEED, range(40), tmp_path, distributed=True))
    assert not found, "\n".join(found)


def test_programs_of_dask_array_in_memory(tmp_path):
    pytest.importorskip("dask_array")
    drawings = [Drawing(Random(f"{SEED} {n}"), tmp_path, "dask-array") for n in range(20)]
    programs = [drawing.program() for drawing in drawings]
    assert sum(len(program.lines) for program in programs) > 60
    assert all(drawing.side.arrays() for drawing in drawings)
    assert programs == [program_of(SEED, n, tmp_path, "dask-array") for n in range(20)]


@pytest.mark.skipif(
    "array_type" not in inspect.signature(from_b2nd).parameters, reason="there is one front end"
)
def test_programs_of_dask_array(tmp_path):
    pytest.importorskip("dask_array")
    found = list(search(SEED, range(40), tmp_path, "dask-array"))
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_every_rule_has_something_to_do(tmp_path):
    fired = Counter()
    for number in range(PROGRAMS):
        fired.update(rules_fired(program_of(SEED, number, tmp_path), tmp_path))
    assert all(fired[rule] for rule in RULE_NAMES), fired


def test_programs_are_the_same_each_time(tmp_path):
    once, again = ([program_of(SEED, n, tmp_path) for n in range(10)] for _ in range(2))
    assert once == again
