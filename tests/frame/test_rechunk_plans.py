"""Plans of rechunks: regions are made of chunks, the memory is kept, the counts are right."""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.read_cost import Boxes
from b2nd_dask.frame.rechunk.one_pass import LEAST_BATCH, Budget, TooLittleMemoryError
from b2nd_dask.frame.rechunk.passes import flat_boxes, flat_pass, plan_passes
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


@examples(60)
@given(pair=grids(), kilobytes=st.integers(1, 10**6), threads=st.integers(1, 5))
def test_passes(pair: tuple[Grid, Grid], kilobytes: int, threads: int) -> None:
    source, target = pair
    budget = Budget(kilobytes << 10, threads, 1 << 16)
    try:
        plan = plan_passes(source, target, budget)
    except ValueError as error:
        least = nbytes_of(told(error)[1])
        assert least > budget.nbytes
        budget = budget._replace(nbytes=least)
        plan = plan_passes(source, target, budget)
    assert plan.nbytes <= budget.nbytes
    assert plan.steps[-1].target == target
    before = source
    for step in plan.steps:
        sizes = zip(step.region, step.target.chunks, before.shape, strict=True)
        assert all(length == n or length % chunk == 0 for length, chunk, n in sizes)
        assert 1 <= step.concurrency <= threads
        assert math.prod(step.region) * 4 * step.concurrency <= budget.nbytes
        cut = tuple(map(steps, before.shape, step.region))
        decodes = Boxes(before, cut).decodes
        # of blocks that do not divide their chunk, some edges are not known to be ends of regions
        known = not any(c % b for c, b in zip(before.chunks, before.blocks, strict=True))
        assert step.decodes == pytest.approx(decodes) or (not known and step.decodes > decodes)
        before = step.target


@examples(60)
@given(
    pair=grids(),
    megabytes=st.integers(1, 20),
    more=st.floats(1, 100),
    batches=st.sampled_from([LEAST_BATCH, 64 << 20]),
)
def test_more_than_the_least_memory_is_enough_too(
    pair: tuple[Grid, Grid], megabytes: int, more: float, batches: int
) -> None:
    budget = Budget(megabytes << 18, 2, 1 << 16, batches)
    try:
        plan_passes(*pair, budget)
    except ValueError as error:
        least = nbytes_of(told(error)[1])
        plan_passes(*pair, budget._replace(nbytes=least * more))


@pytest.mark.parametrize("nbytes", [512e6, 2e9])
def test_regions_of_wide_maps_and_long_series_need_few_decodes(nbytes: float) -> None:
    """In one pass, or with chunks that both hold in full, each block would be read for long."""
    maps = Grid((100_000, 721, 1440), (1, 721, 1440), (1, 721, 1440), 4)
    series = Grid(maps.shape, (100_000, 1, 10), (100_000, 1, 10), 4)
    plan = plan_passes(maps, series, Budget(nbytes, 2, 1 << 20))
    assert len(plan.steps) > 1
    assert plan.nbytes <= nbytes
    assert all(step.decodes < 2 for step in plan.steps)


def told(error: ValueError) -> tuple[str, str]:
    """What an error says of the memory: what was passed, and what to pass."""
    passed, least = re.findall(r'max_mem="([^"]+)"', str(error))
    return passed, least


@examples(60)
@given(asked=st.integers(1, 10**13), more=st.integers(1, 10**9))
def test_the_least_memory_looks_like_more_than_was_passed(asked: int, more: int) -> None:
    needed = asked + more
    error = Budget(asked, 1, 1).too_little("for this", lambda _: needed)
    passed, least = told(error)
    assert nbytes_of(passed) <= asked < needed <= nbytes_of(least)
    assert nbytes_of(least) <= 1.03 * needed + 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_all_steps_of_a_plan_count_the_same_batches() -> None:
    whole = Budget(10**9, 2, 1 << 20, 64 << 20)
    assert LEAST_BATCH < whole.read_batch < whole.most_batch
    assert whole.without(4 * 10**8).read_batch == whole.read_batch


def test_numbers_of_three_digits_are_shown_as_they_were_passed() -> None:
    for number in ("12.3MB", "12.8MB", "999B", "1.05MB", "64MB", "820kB", "2100MB"):
        error = TooLittleMemoryError(nbytes_of(number), nbytes_of(number), "for this", "")
        assert told(error) == (number, number)


@examples(30)
@given(threads=st.integers(1, 9), itemsize=st.sampled_from([1, 8, 10**6]), n=st.integers(1, 10**6))
def test_the_least_memory_of_a_reshape_is_enough(threads: int, itemsize: int, n: int) -> None:
    budget = Budget(10**6, threads, 1 << 20)
    with pytest.raises(ValueError, match="for a reshape") as raised:
        flat_pass((n, 30), itemsize, budget)
    least = nbytes_of(told(raised.value)[1])
    assert flat_pass((n, 30), itemsize, budget._replace(nbytes=least)).nbytes <= least


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
    way = flat_pass(shape, 8, Budget(megabytes << 20, 2, 1 << 16))
    sizes = list(zip(way.region, way.target.chunks, shape, strict=True))
    assert all(length == n or length % chunk == 0 for length, chunk, n in sizes)
    for box in (way.region, way.target.chunks):
        # ones, one of any length, whole axes
        inner = [
            axis for axis, (length, n) in enumerate(zip(box, shape, strict=True)) if length < n
        ]
        assert all(box[axis] == 1 for axis in range(max(inner, default=0)))
    assert 2 * math.prod(way.region) * 8 * way.concurrency <= megabytes << 20
