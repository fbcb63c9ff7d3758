"""The drawing of a chunk grid: its colours are the kinds of the chunks, its size is bounded."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.edges.display.chunk_values import KINDS, MIXED, ChunkValues, binned_kinds
from b2nd_dask.edges.display.pages import draw_chunks
from tests.edges.display.pages import Page
from tests.strategies import examples

_BOX = re.compile(r"M(\d+),(\d+)h1v1h-1z")


def drawn(kinds: np.ndarray, chunks: tuple[int, ...], names: tuple[str, ...]) -> str:
    """The drawing of chunks of some kinds."""
    values = ChunkValues("kind", np.dtype("u1"), kinds, None, codecs=())
    return draw_chunks(values, chunks, names)


def cells(svg: str) -> dict[tuple[int, int], int]:
    """Kinds of the cells of a drawing, by row and column; each cell is drawn once."""
    page = Page(svg)
    found = [
        ((int(row), int(column)), code)
        for code, kind in KINDS.items()
        for column, row in _BOX.findall(page.paths(kind.css))
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_cells_have_the_colours_of_their_kinds() -> None:
    kinds = np.array([[0, 1, 2, 4], [3, 0, 0, 1], [4, 4, 2, 0]], np.uint8)
    svg = drawn(kinds, (10, 10), ("lat", "lon"))
    assert cells(svg) == dict(np.ndenumerate(kinds))
    assert "rows lat, columns lon; a cell is a chunk" in Page(svg).text


def test_planes_stand_side_by_side() -> None:
    kinds = np.array([[[0, 1]], [[2, 4]], [[1, 1]]], np.uint8)
    svg = drawn(kinds, (1, 2, 2), ("time", "lat", "lon"))
    assert cells(svg) == {(0, 0): 0, (0, 1): 1, (0, 3): 2, (0, 4): 4, (0, 6): 1, (0, 7): 1}
    assert "a panel for each of time; rows lat, columns lon" in Page(svg).text


@examples(60)
@given(
    counts=st.lists(st.integers(1, 90), min_size=0, max_size=5).filter(lambda c: np.prod(c) < 2e5),
    seed=st.integers(0, 99),
)
def test_any_grid_is_drawn_and_small(counts: list[int], seed: int) -> None:
    kinds = np.random.default_rng(seed).choice([0, 1, 2, 3, 4], counts).astype(np.uint8)
    kinds = np.asarray(kinds, np.uint8)
    names = tuple(f"<{n}>" for n in range(len(counts)))
    svg = drawn(kinds, (3,) * len(counts), names)
    assert len(svg) < 60_000
    page = Page(svg)
    assert all(
        float(a["width"]) < 420 and float(a["height"]) < 420 for t, a in page.tags if t == "svg"
    )
    assert ("several kinds" in page.text) == bool(page.paths("mixed"))
    found = list(cells(svg).values())
    if len(found) == kinds.size:
        assert sorted(found) == sorted(kinds.reshape(-1).tolist())
    else:
        assert len(found) < kinds.size
        assert set(found) <= set(KINDS)


def test_very_many_chunks_that_are_alike_are_not_expanded() -> None:
    kinds = np.broadcast_to(np.uint8(1), (20_000, 10_000))
    page = Page(drawn(kinds, (10, 10), ("y", "x")))
    assert page.paths("zeros")
    assert not page.paths("stored")


def test_an_empty_array_has_no_chunks() -> None:
    assert "no chunks" in drawn(np.zeros((0, 0), np.uint8), (1, 1), ("y", "x"))


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
