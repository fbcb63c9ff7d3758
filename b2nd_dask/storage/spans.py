"""Byte ranges, and merging of ranges that lie close together."""

from __future__ import annotations

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
    """Merged spans, and the position of each original span in them."""

    merged: tuple[Span, ...]
    """Ordered by their start."""

    positions: tuple[Position, ...]
    """One for each original span, in the original order."""


def coalesce(spans: Sequence[Span], *, max_gap: int, max_size: int) -> Plan:
    """Merge spans that lie close together, for fewer reads.

    The spans are not empty; they may overlap and come in any order. Gaps of at most `max_gap` bytes
    are merged. A merged span has at most `max_size` bytes, but a single larger span stays whole.
    Every original span lies in exactly one merged span.

    Examples
    --------
    >>> plan = coalesce([Span(20, 30), Span(0, 16)], max_gap=4, max_size=100)
    >>> plan.merged
    (Span(start=0, stop=30),)
    >>> plan.positions
    (Position(part=0, start=20), Position(part=0, start=0))
    """
    merged: list[Span] = []
    positions = [Position(0, 0)] * len(spans)
    # The longest first among equal starts: spans inside it then never start a merged span.
    for i in sorted(range(len(spans)), key=lambda i: (spans[i].start, -spans[i].stop)):
        span = spans[i]
        if not 0 <= span.start < span.stop:
            raise ValueError(f"a span must have 0 <= start < stop; this one is {span}")
        if merged and _joins(merged[-1], span, max_gap=max_gap, max_size=max_size):
            merged[-1] = Span(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
        positions[i] = Position(len(merged) - 1, span.start - merged[-1].start)
    return Plan(tuple(merged), tuple(positions))


def _joins(last: Span, span: Span, *, max_gap: int, max_size: int) -> bool:
    contained = span.stop <= last.stop
    near = span.start - last.stop <= max_gap
    return contained or (near and span.stop - last.start <= max_size)


@dataclass(frozen=True, slots=True)
class Reading:
    """Requested spans of one object, and the plan of their merged reads."""

    spans: tuple[Span, ...]
    """Clipped at the end of the object."""

    plan: Plan
    """Plan for the nonempty spans."""

    @classmethod
    def of(cls, spans: Sequence[Span], *, size: int, max_gap: int, max_size: int) -> Reading:
        """Plan the reads of spans as in `coalesce`; here they may be empty, or go past the end.

        The `size` of the object limits allocations for lengths from a damaged file.
        """
        clipped = tuple(clip(span, size) for span in spans)
        nonempty = [span for span in clipped if span.start < span.stop]
        return cls(clipped, coalesce(nonempty, max_gap=max_gap, max_size=max_size))

    def results(self, parts: Sequence[bytes]) -> list[bytes]:
        """Cut the requested spans out of the merged reads.

        The parts belong to the spans of `plan.merged`; they are shorter at the end of the object.
        """
        positions = iter(self.plan.positions)
        results = []
        for start, stop in self.spans:
            if start == stop:
                results.append(b"")
            else:
                part, at = next(positions)
                results.append(parts[part][at : at + stop - start])
        return results


def clip(span: Span, size: int) -> Span:
    """Cut a span at the end of an object of `size` bytes.

    Raises ValueError if the span starts before the object, or ends before its own start.
    """
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"a span must have 0 <= start <= stop; this one is {span}")
    return Span(min(start, size), min(stop, size))
