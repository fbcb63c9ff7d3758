"""Defaults in docs/recipes.md, compared with the sizes of frames."""

from __future__ import annotations

import pytest

from benchmarks.defaults import COMPRESSIONS, Kind, blocks_of, kinds, measure

KINDS = {kind.name: kind for kind in kinds(quick=True)}


def size(kind: Kind, compression: str) -> float:
    blocks = blocks_of("default", kind)
    return measure(kind, blocks, COMPRESSIONS[compression], repeat=1).size


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"text, uint8"}))
def test_the_default_is_not_much_larger_than_a_high_level(name: str) -> None:
    kind = KINDS[name]
    assert size(kind, "default") < 1.35 * size(kind, "level 5")


@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        ("photo, uint8", "bitshuffle"),
        ("mask, bool", "bitshuffle"),
        ("volume to 0.01, float64", "bitshuffle"),
        ("volume to 0.01, float64", "no filter"),
    ],
)
def test_where_another_filter_saves_space(name: str, smaller: str) -> None:
    assert size(KINDS[name], smaller) < 0.95 * size(KINDS[name], "default")


@pytest.mark.parametrize(
    "name",
    [
        "temperature to 0.01, float32",
        "rain, mostly zeros, float32",
        "labels, uint8",
        "noise, int8",
        "text, uint8",
    ],
)
def test_where_bitshuffle_loses_space(name: str) -> None:
    assert size(KINDS[name], "bitshuffle") > 1.2 * size(KINDS[name], "default")


def test_integers_are_smaller_than_rounded_floats() -> None:
    packed, rounded = KINDS["temperature, packed, int16"], KINDS["temperature to 0.01, float32"]
    stored = 2 * size(packed, "default") / 4
    assert stored < size(rounded, "default")
