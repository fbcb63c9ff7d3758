"""Selections against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.grid import AxisCells, Grid, parse_selection
from b2nd_dask.frame.read.decode import paired_views, tiles

ranges = st.builds(
    lambda start, count, step: range(start, start + count * step, step),
    st.integers(0, 50),
    st.integers(0, 40),
    st.integers(1, 30),
)


@given(ranges, st.integers(1, 25))
def test_pieces_are_the_positions_cut_into_cells(positions, size):
    pieces = AxisCells(positions, size)
    found = [piece.cell * size + i for piece in pieces for i in piece.inner]
    assert found == list(positions)
    assert all(0 <= i < size for piece in pieces for i in piece.inner)
    assert [i for piece in pieces for i in range(100)[piece.out]] == list(range(len(positions)))
    assert len({piece.cell for piece in pieces}) == len(pieces)
    assert pieces.numbers.tolist() == [piece.cell for piece in pieces]
    assert pieces.lengths.tolist() == [len(piece.inner) for piece in pieces]
    assert pieces.bounds.tolist() == [0, *(piece.out.stop for piece in pieces)]
    assert [pieces[-1 - i] for i in range(len(pieces))] == [*pieces][::-1]
    with pytest.raises(IndexError):
        pieces[len(pieces)]


@given(ranges, st.integers(1, 25))
def test_tiles_cover_the_positions_once(positions, block):
    found = [
        number * block + i
        for tile in tiles(positions, block)
        for number in range(2000)[tile.blocks]
        for i in range(block)[tile.inner]
    ]
    assert found == list(positions)


@pytest.mark.parametrize("index", [5, -6, 99, (0, 0, 0), (..., ...), [1, 2], True, 1.5, "a"])
def test_what_is_no_basic_index_of_the_shape_is_an_index_error(index):
    with pytest.raises(IndexError):
        parse_selection(index, (5, 4))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=3))
def test_extents_of_chunks_are_the_array_cut_into_chunks(axes):
    grid = Grid(tuple(n for n, _ in axes), tuple(c for _, c in axes), (1,) * len(axes), 8)
    expected = np.empty(grid.shape, int)
    cells = list(np.ndindex(grid.counts))
    for number, cell in enumerate(cells):
        where = [slice(i * c, (i + 1) * c) for i, c in zip(cell, grid.chunks, strict=True)]
        expected[tuple(where)] = number
    found = np.full(grid.shape, -1)
    for number, cell in enumerate(cells):
        assert grid.cell(number) == cell
        found[np.ix_(*grid.extent(number))] = number
    assert found.tolist() == expected.tolist()
    for number in (-1, len(cells), 2 * len(cells) + 1):
        with pytest.raises(ValueError, match=f"chunk {number} does not exist"):
            grid.cell(number)


@given(st.data())
def test_scatter_is_the_inverse_of_blocking(data):
    ndim = data.draw(st.integers(0, 3))
    chunk = tuple(data.draw(st.integers(1, 9)) for _ in range(ndim))
    block = tuple(data.draw(st.integers(1, c)) for c in chunk)
    grid = Grid(chunk, chunk, block, 8)
    items = np.arange(np.prod(grid.padded_chunk, dtype=int)).reshape(grid.padded_chunk)
    # blocks one after the other, the plain way
    raw = np.concatenate(
        [
            items[tuple(slice(i * b, (i + 1) * b) for i, b in zip(at, block, strict=True))].ravel()
            for at in np.ndindex(grid.blocks_per_chunk)
        ]
    )
    inner = tuple(
        range(*data.draw(st.slices(c).filter(lambda s: (s.step or 1) > 0)).indices(c))
        for c in chunk
    )
    out = np.full(tuple(len(r) for r in inner), -1)
    for stored, target in paired_views(raw, grid, inner, out):
        target[...] = stored
    np.testing.assert_array_equal(out, items[tuple(slice(r.start, r.stop, r.step) for r in inner)])
    assert grid.chunk_is_c_order == bool((raw == items.ravel()).all())
