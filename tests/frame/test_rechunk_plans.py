"""Plans of rechunks: regions are made of chunks, the memory is kept, the counts are right."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.decode_cost import decodes_per_block
from b2nd_dask.frame.rechunk.one_pass import Budget, best_pass
from b2nd_dask.frame.rechunk.passes import flat_pass, plan_passes
from b2nd_dask.frame.rechunk.source import flat_boxes
from b2nd_dask.frame.rechunk.work import boxes_to_verify
from b2nd_dask.frame.write.conflicts import ChunkBox
from b2nd_dask.graph.resources import nbytes_of
from tests.strategies import examples


@st.composite
def grids(draw: st.DrawFn) -> tuple[Grid, Grid]:
    """Draw a source and a target of one shape."""
    shape = draw(st.lists(st.integers(1, 400), min_size=1, max_size=4).map(tuple))
    chunks = draw(st.tuples(*(st.integers(1, n) for n in shape)))
    blocks = draw(st.tuples(*(st.integers(1, c) for c in chunks)))
    wanted = draw(st.tuples(*(st.integers(1, n) for n in shape)))
    return Grid(shape, chunks, blocks, 4), Grid(shape, wanted, wanted, 4)


def steps(total: int, step: int) -> tuple[int, ...]:
    return tuple(min(step, total - at) for at in range(0, total, step))


@examples(40)
@given(pair=grids(), megabytes=st.integers(8, 4000), threads=st.integers(1, 5))
def test_passes(pair: tuple[Grid, Grid], megabytes: int, threads: int) -> None:
    source, target = pair
    budget = Budget(megabytes << 20, threads, 1 << 16, 1 << 16)
    try:
        plan = plan_passes(source, target, 0, budget)
    except ValueError as error:
        assert "the least that would do" in str(error)  # noqa: PT017
        assert best_pass(source, target, 0, budget) is None
        return
    assert plan.nbytes <= budget.nbytes
    assert plan.steps[-1].target == target
    before = source
    for step in plan.steps:
        way, sizes = step.way, zip(step.way.region, step.target.chunks, before.shape, strict=True)
        assert all(length == n or length % chunk == 0 for length, chunk, n in sizes)
        assert 1 <= way.lanes <= threads
        assert math.prod(way.region) * 4 * way.lanes <= budget.nbytes
        cut = tuple(map(steps, before.shape, way.region))
        assert way.decodes == pytest.approx(decodes_per_block(before, cut))
        before = step.target


def told(error: ValueError) -> tuple[str, str]:
    """What an error says of the memory: what was passed, and what to pass."""
    passed, least = re.findall(r'max_mem="([^"]+)"', str(error))
    return passed, least


@examples(60)
@given(asked=st.integers(1, 10**13), more=st.integers(1, 10**9))
def test_the_least_memory_looks_like_more_than_was_passed(asked: int, more: int) -> None:
    needed = asked + more
    error = Budget(asked, 1, 1, 1).too_little("for this", lambda given: given.nbytes >= needed)
    passed, least = told(error)
    assert nbytes_of(passed) <= asked < needed <= nbytes_of(least)
    assert nbytes_of(least) <= 1.03 * needed + 1


def test_the_least_memory_is_enough_where_more_is_not() -> None:
    """As with intermediate frames, whose chunks grow with the memory."""

    def suffices(given: Budget) -> bool:
        return given.nbytes > 10**7 and not 10_050_000 < given.nbytes < 10_150_000

    least = told(Budget(10**6, 1, 1, 1).too_little("for this", suffices))[1]
    assert suffices(Budget(nbytes_of(least), 1, 1, 1))


def test_numbers_of_three_digits_are_shown_as_they_were_passed() -> None:
    for number in ("12.3MB", "12.8MB", "999B", "1.05MB", "64MB", "820kB", "2100MB"):
        budget = Budget(nbytes_of(number), 1, 1, 1)
        assert told(budget.too_little("for this", lambda _: True)) == (number, number)


@examples(30)
@given(threads=st.integers(1, 9), itemsize=st.sampled_from([1, 8, 10**6]), n=st.integers(1, 10**6))
def test_the_least_memory_of_a_reshape_is_enough(threads: int, itemsize: int, n: int) -> None:
    budget = Budget(10**6, threads, 1 << 20, 1 << 20)
    with pytest.raises(ValueError, match="for a reshape") as raised:
        flat_pass((n, 30), itemsize, budget)
    least = nbytes_of(told(raised.value)[1])
    flat_pass((n, 30), itemsize, budget._replace(nbytes=least))


@examples(60)
@given(st.data())
def test_ranges_in_c_order_as_boxes(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), max_size=4).map(tuple))
    elements = np.arange(math.prod(shape)).reshape(shape)
    stop = data.draw(st.integers(0, elements.size))
    start = data.draw(st.integers(0, stop))
    found = np.full(stop - start, -1)
    for box, (first, last) in flat_boxes(start, stop, shape):
        assert (found[first:last] == -1).all()
        found[first:last] = elements[box].reshape(-1)
    np.testing.assert_array_equal(found, np.arange(start, stop))


@examples(30)
@given(
    shape=st.lists(st.integers(1, 200), min_size=1, max_size=3).map(tuple),
    megabytes=st.integers(6, 200),
)
def test_regions_of_a_reshape(shape: tuple[int, ...], megabytes: int) -> None:
    grid, way = flat_pass(shape, 8, Budget(megabytes << 20, 2, 1 << 16, 1 << 16))
    sizes = list(zip(way.region, grid.chunks, shape, strict=True))
    assert all(length == n or length % chunk == 0 for length, chunk, n in sizes)
    for box in (way.region, grid.chunks):
        # ones, one of any length, whole axes
        inner = [
            axis for axis, (length, n) in enumerate(zip(box, shape, strict=True)) if length < n
        ]
        assert all(box[axis] == 1 for axis in range(max(inner, default=0)))
    assert 2 * math.prod(way.region) * 8 * way.lanes <= megabytes << 20


@examples(60)
@given(st.data())
def test_boxes_to_verify_are_the_chunks_of_a_region(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 12), max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    starts = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    axes = tuple(
        range(a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True)
    )
    most = data.draw(st.integers(1, 20))
    grid = Grid(shape, chunks, chunks, 8)
    touched = [
        number
        for number in range(grid.nchunks)
        if all(set(a) & set(b) for a, b in zip(grid.extent(number), axes, strict=True))
    ]
    boxes = [
        ChunkBox.between(first, last, grid).chunks(grid).tolist()
        for first, last in boxes_to_verify(grid, axes, most)
    ]
    assert sorted(number for box in boxes for number in box) == touched
    assert max(map(len, boxes)) <= most
