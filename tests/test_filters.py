"""The advice on filters in docs/recipes.md, checked against the sizes that python-blosc2 makes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.filters import FILTERS, arrays, measure

SHAPE = (4, 180, 360)
ARRAYS = {f"{dtype}, {kind}": items for dtype, kind, items in arrays(SHAPE)}


@pytest.mark.parametrize("name", ARRAYS)
def test_which_filter_suits(name: str) -> None:
    sizes = {
        kind: measure(ARRAYS[name], "zstd 1", filters, repeat=1).size
        for kind, filters in FILTERS.items()
    }
    shuffle, bitshuffle, none = sizes["shuffle"], sizes["bitshuffle"], sizes["none"]
    if name.startswith("float64") and "0.01" in name:
        assert none < 0.7 * shuffle
    elif name.startswith("bool"):
        assert bitshuffle <= 1.05 * min(shuffle, none)
    else:
        assert min(shuffle, bitshuffle) < none
    if name.startswith("float32") and "0.01" in name:
        assert shuffle < 0.8 * bitshuffle
    if "rounded to 0.5" in name:
        assert bitshuffle < shuffle


def test_integers_are_smaller_than_rounded_floats() -> None:
    small = measure(ARRAYS["int16, noisy, in steps of 0.01"], "zstd 1", FILTERS["shuffle"], 1)
    for name, kind in (("float64", "none"), ("float32", "shuffle")):
        items = ARRAYS[f"{name}, noisy, rounded to 0.01"]
        rounded = measure(items, "zstd 1", FILTERS[kind], 1).size * items.itemsize
        assert 2 * small.size < 0.7 * rounded
    assert np.array_equal(
        (ARRAYS["float64, noisy, rounded to 0.01"] * 100).round().astype("i2"),
        ARRAYS["int16, noisy, in steps of 0.01"],
    )
