"""Random programs over frames give what the same programs give over arrays in memory.

Values, dtypes, shapes, masks and errors are alike, frames stay as they were, and results can be
written to. What a run of ``pytest -m long tests/graph/test_programs.py`` or ``python -m
tests.graph.programs --seconds 3600`` finds with its fresh seeds is printed as a line for `FOUND`
in `test_found_programs`.
"""

import secrets
from collections import Counter

import pytest

from tests.graph.programs.rules import RULES, rules_fired
from tests.graph.programs.search import program_of, search

SEED = 11
PROGRAMS = 120
BATCHES = 6

#: What dask and NumPy warn of in memory, too.
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


def test_every_rule_has_something_to_do(tmp_path):
    fired = Counter()
    for number in range(60):
        fired.update(rules_fired(program_of(SEED, number, tmp_path), tmp_path))
    assert all(fired[rule] >= 2 for rule in RULES), fired


def test_programs_are_the_same_each_time(tmp_path):
    once, again = ([program_of(SEED, n, tmp_path) for n in range(10)] for _ in range(2))
    assert once == again
