"""Mutated frames return values or raise a documented error; includes all earlier failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.fuzz.files import Files, from_text
from tests.fuzz.mutate import MUTATIONS
from tests.fuzz.probe import case
from tests.fuzz.run import run_batch, run_kept, store_seeds
from tests.fuzz.seeds import make_seeds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def stored(seeds: dict[str, Files], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_seeds(seeds, tmp_path_factory.mktemp("stored") / "seeds.json")


def test_mutations_give_values_or_a_documented_error(stored: Path) -> None:
    assert list(run_batch(stored, 1, 0, 300)) == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8)),
    ],
)
def test_many_mutations_give_values_or_a_documented_error(stored: Path, seed: int) -> None:
    assert list(run_batch(stored, seed, 0, 1000)) == []


def test_cases_that_were_found_stay_mended(tmp_path: Path) -> None:
    assert CASES
    assert list(run_kept(CASES, tmp_path)) == []


def test_every_mutation_changes_frames(seeds: dict[str, Files]) -> None:
    changed = sum(case(seeds, 1, number)[1] not in seeds.values() for number in range(200))
    assert changed > 150
    assert len({mutation.__name__ for mutation in MUTATIONS}) > 10


def test_cases_are_the_same_in_every_process(seeds: dict[str, Files], stored: Path) -> None:
    texts = json.loads(stored.read_text("ascii"))
    again = {name: from_text(text) for name, text in texts.items()}
    assert [case(seeds, 5, n) for n in range(50)] == [case(again, 5, n) for n in range(50)]
