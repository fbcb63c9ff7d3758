"""`rechunk`: any chunks to any others, compared with NumPy and python-blosc2."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import rechunk, verify
from b2nd_dask.frame.rechunk import passes as passes_module
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def values_of(shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


@pytest.fixture
def plans(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The passes that were planned, as the log says them."""
    caplog.set_level(logging.INFO, "b2nd_dask")
    return lambda: [text for text in caplog.messages if "decoded" in text]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a frame, and the chunks that it gets."""
    ndim = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, (300, 24, 11, 6)[ndim - 1])) for _ in range(ndim)]
    chunks = [draw(st.integers(1, n + 1)) for n in shape]
    blocks = [draw(st.integers(1, c)) for c in chunks]
    wanted = [draw(st.integers(1, n + 1)) for n in shape]
    wanted_blocks = draw(st.none() | st.tuples(*(st.integers(1, c) for c in wanted)))
    fill = draw(st.sampled_from(["data", "some zeros", "zeros", "nan"]))
    return {
        "shape": tuple(shape),
        "chunks": tuple(chunks),
        "blocks": tuple(blocks),
        "wanted": tuple(wanted),
        "wanted_blocks": wanted_blocks,
        "fill": fill,
        "dtype": draw(st.sampled_from(["<f4", ">f8", "<f8"])),
        "contiguous": draw(st.booleans()),
        "passes": draw(st.integers(1, 3)),
    }


def array_for(case: dict[str, Any]) -> np.ndarray:
    values = values_of(case["shape"], case["dtype"])
    if case["fill"] == "zeros":
        values[...] = 0
    elif case["fill"] == "nan":
        values[...] = np.nan
    elif case["fill"] == "some zeros":
        values[: len(values) // 2 + 1] = 0
    return values


@examples(60)
@given(case=cases())
def test_any_chunks_to_any_others(case: dict[str, Any], fresh_path: Callable[[], Path]) -> None:
    source, target = fresh_path(), fresh_path()
    values = array_for(case)
    blosc2.asarray(values, urlpath=str(source), chunks=case["chunks"], blocks=case["blocks"])
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        if case["passes"] > 1:
            force_passes(patch, case["passes"])
        found = rechunk(
            source,
            target,
            chunks=case["wanted"],
            blocks=case["wanted_blocks"],
            contiguous=case["contiguous"],
        )
    written = blosc2.open(str(target), mode="r")
    assert written.chunks == case["wanted"]
    assert case["wanted_blocks"] in (None, written.blocks)
    np.testing.assert_array_equal(written[...], values)
    assert found.dtype == values.dtype
    assert verify(target).ok
    # nothing of it stays
    assert not list(target.parent.glob(f".{target.name}*"))


def force_passes(patch: pytest.MonkeyPatch, number: int) -> None:
    """Make plans of a number of passes, where there is one."""
    plain = passes_module._best

    def best(source, target, stored, budget, most_between):  # type: ignore[no-untyped-def]
        patch.setattr(passes_module, "_LEAST_CHUNK", 1)
        through = passes_module._through(source, target, stored, budget, number - 1)
        return through or plain(source, target, stored, budget, most_between)

    patch.setattr(passes_module, "_best", best)
