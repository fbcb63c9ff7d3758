"""Statistics of one chunk, against NumPy on its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b2nd_dask.format import statistics as kernel
from b2nd_dask.format.statistics import chunk_statistics, statistics_row

KINDS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
KINDS += ["m8[s]", "M8[25us]"]
DTYPES = [f"{order}{kind}" for order in "<>" for kind in KINDS]


def computed(elements: np.ndarray[Any, Any]) -> dict[str, Any]:
    """One chunk's statistics as scalars."""
    row = chunk_statistics(elements)
    assert row.dtype == statistics_row(elements.dtype)
    return {name: row[name] for name in row.dtype.names}


def expected(elements: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What NumPy says, by a function for each fact."""
    kind = elements.dtype.kind
    elements = elements.astype(elements.dtype.newbyteorder("="))
    is_nan = np.isnat(elements) if kind in "mM" else np.isnan(elements)
    numbers = elements[~is_nan]
    total: Any = None
    if kind in "mM":
        total = sum(numbers.view("i8").tolist())
    elif kind in "biu":
        total = sum(map(int, numbers.tolist()))
    else:
        total = numbers.astype("c16" if kind == "c" else "f8").sum()
    if kind in "bimM":
        total = (total + 2**63) % 2**64 - 2**63
    elif kind == "u":
        total %= 2**64
    return {
        "known": True,
        "least": numbers.min() if len(numbers) and kind != "c" else None,
        "greatest": numbers.max() if len(numbers) and kind != "c" else None,
        "total": total,
        "nans": is_nan.sum(),
        "nonzeros": np.count_nonzero(elements),
    }


def check(elements: np.ndarray[Any, Any]) -> None:
    """Compare all facts."""
    with np.errstate(all="ignore"):
        found, wanted = computed(elements), expected(elements)
        for name, value in wanted.items():
            if name in ("least", "greatest") and value is None:
                # one of NaN, where there is an order
                assert elements.dtype.kind == "c" or found[name] != found[name], name
            elif name == "total" and elements.dtype.kind in "fc":
                sizes = np.abs(elements[~np.isnan(elements)].astype("c16"))
                bound = 1e-14 * sizes[np.isfinite(sizes)].sum() + 1e-300
                np.testing.assert_allclose(found[name], value, rtol=0, atol=bound, err_msg=name)
            else:
                assert found[name] == value, name


def random_elements(dtype: np.dtype[Any], size: int, seed: int) -> np.ndarray[Any, Any]:
    """Any bits, or small numbers, with zeros, and NaN, infinities and -0.0 where there are such."""
    rng = np.random.default_rng(seed)
    kind = dtype.kind
    if kind == "b":
        return rng.integers(0, 2, size).astype(dtype)
    if kind in "fc":
        scale = rng.choice([1.0, 100.0])
        values = rng.normal(size=size) * scale
        elements = (
            values.astype(dtype) if kind == "f" else (values + 1j * values[::-1]).astype(dtype)
        )
        share = rng.choice([0, 0.2, 1.0], p=[0.4, 0.4, 0.2])
        odd = rng.random(size) < share
        choices = [np.nan, -0.0, 0.0] + ([np.inf, -np.inf] if rng.random() < 0.3 else [])
        elements[odd] = rng.choice(choices[: rng.integers(1, len(choices) + 1)], odd.sum())
        return elements
    raw = rng.bytes(size * dtype.itemsize)
    elements = np.frombuffer(raw, dtype).copy()
    if kind in "mM":
        elements[rng.random(size) < rng.choice([0, 0.3, 1.0])] = "NaT"
        return elements
    elements[rng.random(size) < rng.choice([0, 0.3])] = 0
    return np.abs(elements) if rng.random() < 0.3 else elements


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 300))
def test_a_chunk_of_any_dtype(dtype: str, seed: int, size: int) -> None:
    check(random_elements(np.dtype(dtype), size, seed))


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i2", "<M8[ns]", "b1", "<c8"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_pieces_of_any_layout(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, rng.integers(1, 4)).tolist())
    base = random_elements(np.dtype(dtype), int(np.prod(shape)) * 4, seed)
    wide = base.reshape(*(2 * n for n in shape[:2]), *shape[2:], -1)[..., 0]
    cut = tuple(slice(None, None, int(rng.integers(1, 3))) for _ in shape)
    before = kernel._PIECE_NBYTES
    kernel._PIECE_NBYTES = int(rng.choice([16, 64, 200]))
    try:
        for elements in (wide, wide[cut], wide.T, np.asfortranarray(wide[cut]), wide[::-1]):
            check(elements)
    finally:
        kernel._PIECE_NBYTES = before


@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")
@pytest.mark.parametrize("order", "<>")
def test_time_differences_without_a_unit(order: str) -> None:
    ticks = np.arange(-150_000, 150_000).astype(f"{order}i8")
    row = chunk_statistics(ticks.view(f"{order}m8")).view(statistics_row(ticks.dtype))
    assert [int(row[name]) for name in ("least", "greatest", "total")] == [
        -150_000,
        149_999,
        -150_000,
    ]


def test_sums_of_integers_wrap_as_those_of_numpy() -> None:
    values = np.full(1000, 2**62, np.int64)
    values[7] += 5
    assert computed(values)["total"] == values.sum()
    assert computed(values[:2])["total"] == values[:2].sum()
    repeated = np.broadcast_to(np.uint64(2**63 + 1), (5,))
    assert computed(repeated)["total"] == repeated.sum()


def test_sums_of_narrow_floats_are_as_exact_as_those_of_wide_ones() -> None:
    values = np.random.default_rng(5).random(300_000).astype("f4") + np.float32(1e4)
    assert computed(values)["total"] == pytest.approx(values.astype("f8").sum(), rel=1e-14)
    half = np.full(200_000, 60000, "f2")
    half[3] = 1
    assert computed(half)["total"] == half.astype("f8").sum()


def test_infinities_of_both_signs_make_a_nan_of_the_sum_alone() -> None:
    found = computed(np.array([np.inf, 1, -np.inf, 2]))
    assert (found["least"], found["greatest"], found["nans"]) == (-np.inf, np.inf, 0)
    assert np.isnan(found["total"])


def test_one_element_for_all() -> None:
    check(np.broadcast_to(np.float32("nan"), (7, 5)))
    check(np.broadcast_to(np.array(-3, ">i2"), (7, 5)))
    check(np.array(4.5))
    check(np.array("NaT", "M8[s]"))


def test_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    for values in ([np.inf, -np.inf, np.nan], [np.nan, np.nan], [1e308, 1e308]):
        computed(np.array(values))
        computed(np.array(values, "c16"))
    assert not recwarn.list
