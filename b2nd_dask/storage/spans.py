"""Byte ranges, and merging of ranges that lie close together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A half-open range of bytes."""

    start: int
    stop: int


class Position(NamedTuple):
    """Position of a span in the merged spans of a plan."""

    part: int
    """Number of the merged span."""

    start: int
    """Offset of the span's first byte from the start of the merged span."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Merged spans, and the position of each nonempty original span in them."""

    spans: list[Span]
    """The original spans, clipped at the end of the object."""

    merged: list[Span]
    """Ordered by their start."""

    positions: list[Position]
    """One for each original span, in the original order; of no meaning for an empty one."""

    def cut(self, parts: Sequence[bytes]) -> list[bytes]:
        """Cut the original spans out of the merged ones.

        The parts belong to the spans of `merged`; they are shorter at the end of the object.
        """
        located = zip(self.spans, self.positions, strict=True)
        return [
            parts[part][at : at + stop - start] if start < stop else b""
            for (start, stop), (part, at) in located
        ]


def coalesce(
    spans: Sequence[Span], *, max_gap: int, max_size: int, size: int = sys.maxsize
) -> Plan:
    """Merge spans that lie close together, for fewer reads.

    The spans may be empty, overlap and come in any order; they are clipped at the `size` of the
    object, which limits allocations for lengths from a damaged file. Gaps of at most `max_gap`
    bytes are merged. A merged span has at most `max_size` bytes, but a single larger span stays
    whole. Every nonempty span lies in exactly one merged span.

    Examples
    --------
    >>> plan = coalesce([Span(20, 30), Span(0, 16)], max_gap=4, max_size=100)
    >>> plan.merged
    [Span(start=0, stop=30)]
    >>> plan.positions
    [Position(part=0, start=20), Position(part=0, start=0)]
    """
    clipped = [clip(span, size) for span in spans]
    merged: list[Span] = []
    positions = [Position(0, 0)] * len(spans)
    # The longest first among equal starts: spans inside it then never start a merged span.
    for i in sorted(range(len(spans)), key=lambda i: (clipped[i].start, -clipped[i].stop)):
        span = clipped[i]
        if span.start == span.stop:
            continue
        if merged and _joins(merged[-1], span, max_gap=max_gap, max_size=max_size):
            merged[-1] = Span(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
        positions[i] = Position(len(merged) - 1, span.start - merged[-1].start)
    return Plan(clipped, merged, positions)


def _joins(last: Span, span: Span, *, max_gap: int, max_size: int) -> bool:
    contained = span.stop <= last.stop
    near = span.start - last.stop <= max_gap
    return contained or (near and span.stop - last.start <= max_size)


def clip(span: Span, size: int) -> Span:
    """Cut a span at the end of an object of `size` bytes.

    Raises ValueError if the span starts before the object, or ends before its own start.
    """
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"a span must have 0 <= start <= stop; this one is {span}")
    return Span(min(start, size), min(stop, size))
