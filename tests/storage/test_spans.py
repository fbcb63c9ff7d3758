"""The merging of spans."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.storage.byte_reader import Span, clip, coalesce

SIZE = 300
spans_of = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 60)).map(
        lambda pair: Span(pair[0], min(SIZE, sum(pair)))
    ),
    max_size=12,
)


@given(spans=spans_of, max_gap=st.integers(0, 30), max_size=st.integers(1, 120))
def test_every_span_lies_in_one_merged_span(spans: list[Span], max_gap: int, max_size: int) -> None:
    merged = coalesce(spans, max_gap=max_gap, max_size=max_size)
    assert sorted(i for _, inside in merged for i in inside) == list(range(len(spans)))
    for (start, stop), inside in merged:
        assert all(start <= spans[i].start and spans[i].stop <= stop for i in inside)


@given(spans=spans_of, max_gap=st.integers(0, 30), max_size=st.integers(1, 120))
def test_merging_keeps_to_its_limits(spans: list[Span], max_gap: int, max_size: int) -> None:
    requested = {i for span in spans for i in range(*span)}
    for merged, _ in coalesce(spans, max_gap=max_gap, max_size=max_size):
        assert merged.stop - merged.start <= max_size or merged in spans
        gap = 0
        for i in range(*merged):
            gap = 0 if i in requested else gap + 1
            assert gap <= max_gap
        assert {merged.start, merged.stop - 1} <= requested


@given(spans=spans_of, max_gap=st.integers(0, 30), max_size=st.integers(1, 120))
def test_neighbours_that_could_be_one_read_are(
    spans: list[Span], max_gap: int, max_size: int
) -> None:
    merged = [span for span, _ in coalesce(spans, max_gap=max_gap, max_size=max_size)]
    assert merged == sorted(merged)
    for left, right in itertools.pairwise(merged):
        assert right.start - left.stop > max_gap or right.stop - left.start > max_size
        assert left.start < right.start
        assert left.stop < right.stop


@pytest.mark.parametrize(
    ("limits", "merged"),
    [
        ({"max_gap": 4, "max_size": 100}, [Span(0, 30)]),
        ({"max_gap": 3, "max_size": 100}, [Span(0, 16), Span(20, 30)]),
        ({"max_gap": 9, "max_size": 30}, [Span(0, 30)]),
        ({"max_gap": 9, "max_size": 29}, [Span(0, 16), Span(20, 30)]),
    ],
)
def test_the_limits_are_inclusive(limits: dict[str, int], merged: list[Span]) -> None:
    found = coalesce([Span(0, 16), Span(20, 30)], **limits)
    assert [span for span, _ in found] == merged


@pytest.mark.parametrize("span", [Span(4, 3), Span(-1, 3)])
def test_spans_that_are_none_are_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="start"):
        coalesce([Span(0, 9), span], max_gap=0, max_size=10)


@pytest.mark.parametrize("span", [Span(4, 3), Span(-1, 3)])
def test_clipping_refuses_what_is_no_span(span: Span) -> None:
    with pytest.raises(ValueError, match="start"):
        clip(span, 100)


@given(
    spans=st.lists(
        st.tuples(st.integers(0, SIZE + 50), st.integers(0, 80)).map(
            lambda pair: Span(pair[0], sum(pair))
        ),
        max_size=12,
    ),
    max_gap=st.integers(0, 30),
    max_size=st.integers(1, 120),
)
def test_reading_merged_is_slicing(spans: list[Span], max_gap: int, max_size: int) -> None:
    data = bytes(i % 251 for i in range(SIZE))
    merged = coalesce([clip(span, SIZE) for span in spans], max_gap=max_gap, max_size=max_size)
    results = [b""] * len(spans)
    for (start, stop), inside in merged:
        fetched = data[start:stop]
        for i in inside:
            results[i] = fetched[spans[i].start - start : spans[i].stop - start]
    assert results == [data[span.start : span.stop] for span in spans]
    assert all(0 <= span.start < span.stop <= SIZE for span, _ in merged)
