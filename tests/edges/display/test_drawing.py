"""The drawing of a chunk grid: its colours are the kinds of the chunks, its size is bounded."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.edges.display.cells import MIXED, binned_kinds
from b2nd_dask.edges.display.chunk_values import KINDS
from b2nd_dask.edges.display.drawing import draw_chunks
from tests.edges.display.pages import Page
from tests.strategies import examples

_BOX = re.compile(r"M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z")


def boxes(path: str) -> list[tuple[float, float, float, float]]:
    return [tuple(map(float, box[:4])) for box in _BOX.findall(path)]


def kind_at(page: Page, x: float, y: float) -> list[int]:
    """Kinds whose boxes hold a point."""
    return [
        code
        for code, kind in KINDS.items()
        for left, top, width, height in boxes(page.paths(kind.css))
        if left < x < left + width and top < y < top + height
    ]


def test_cells_have_the_colours_of_their_kinds() -> None:
    kinds = np.array([[0, 1, 2, 4], [3, 0, 0, 1], [4, 4, 2, 0]], np.uint8)
    page = Page(draw_chunks(kinds, (30, 40), (10, 10))[0])
    edge = next(attrs["d"] for _, attrs in page.tags if attrs.get("class") == "b2nd-edge")
    width, height = map(float, re.match(r"M0,0H([\d.]+)V([\d.]+)", edge).groups())
    for row in range(3):
        for column in range(4):
            found = kind_at(page, (column + 0.5) * width / 4, (row + 0.5) * height / 3)
            assert found == [kinds[row, column]]


def test_chunks_at_the_edge_are_as_small_as_they_are() -> None:
    page = Page(draw_chunks(np.array([0, 1], np.uint8), (11,), (10,))[0])
    (stored,), (zeros,) = boxes(page.paths("stored")), boxes(page.paths("zeros"))
    assert stored[2] == pytest.approx(10 * zeros[2], rel=0.01)


@examples(60)
@given(
    counts=st.lists(st.integers(1, 90), min_size=0, max_size=5).filter(lambda c: np.prod(c) < 2e5),
    seed=st.integers(0, 99),
)
def test_any_grid_is_drawn_and_small(counts: list[int], seed: int) -> None:
    kinds = np.random.default_rng(seed).choice([0, 1, 2, 3, 4], counts).astype(np.uint8)
    kinds = np.asarray(kinds, np.uint8)
    shape = tuple(n * 3 - 1 for n in counts)
    svg, is_mixed = draw_chunks(
        kinds, shape, (3,) * len(counts), tuple(f"<{n}>" for n in range(len(counts)))
    )
    assert len(svg) < 140_000
    page = Page(svg)
    assert all(
        float(a["width"]) < 420 and float(a["height"]) < 420 for t, a in page.tags if t == "svg"
    )
    coarse = "a cell: up to" in page.text
    assert is_mixed == bool(page.paths("mixed"))
    drawn = {code for code, kind in KINDS.items() if page.paths(kind.css)}
    assert drawn == set(kinds.reshape(-1).tolist()) if not coarse else drawn <= set(KINDS)


def test_very_many_chunks_that_are_alike_are_not_expanded() -> None:
    kinds = np.broadcast_to(np.uint8(1), (20_000, 10_000))
    page = Page(draw_chunks(kinds, (200_000, 100_000), (10, 10))[0])
    assert page.paths("zeros")
    assert not page.paths("stored")


def test_an_empty_array_has_no_chunks() -> None:
    assert "no chunks" in draw_chunks(np.zeros((0, 0), np.uint8), (0, 4), (1, 1))[0]


@examples(40)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    step=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_binned_kinds_equal_a_loop(counts: list[int], step: int, seed: int) -> None:
    kinds = (
        np.random.default_rng(seed).choice([0, 1, 4], counts, p=[0.1, 0.8, 0.1]).astype(np.uint8)
    )
    found = binned_kinds(kinds, (step,) * len(counts))
    for cell in np.ndindex(found.shape):
        inside = kinds[tuple(slice(n * step, (n + 1) * step) for n in cell)]
        expected = inside.flat[0] if (inside == inside.flat[0]).all() else MIXED
        assert found[cell] == expected
