"""What every reader of byte ranges has in common: spans, identities, and the merging of spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

HEAD_NBYTES = 1 << 16
"""Bytes that an open reads first: the header of nearly every frame, and all of a small one."""


class Span(NamedTuple):
    """A half-open range of bytes."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells one state of an object from another."""

    size: int
    """Bytes in the object."""

    token: str
    """Changes with the object: from mtime, inode and device, an etag, or a digest."""


class ByteReader(Protocol):
    """One object, or one directory of members, that is read by byte ranges.

    Readers may be used by many threads at once. They do not pickle; a `Location` does.
    """

    @property
    def label(self) -> str:
        """Path or URL for messages; never holds secrets."""

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame: members instead of one object."""

    @property
    def identity_is_cheap(self) -> bool:
        """Whether asking for the identity costs microseconds, so that every read can check it."""

    @property
    def batch_nbytes(self) -> int:
        """Bytes that are best asked for at once, by readers that can use them one after another."""

    @property
    def max_gap(self) -> int:
        """Bytes that cost about as much to read as a separate request does.

        `read` merges spans that are no farther apart. Who plans to read parts of a chunk can
        tell by it whether the parts cost less than the whole.
        """

    def identity(self) -> Identity:
        """Identity of the object (of the main member of a directory), asked anew at each call."""

    def opened_identity(self) -> Identity:
        """Identity of what this reader reads, which may have lost its name to another object."""

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges.

        Parameters
        ----------
        spans : sequence of Span
            May overlap and come in any order.
        member : str
            Name of a member of a directory. Empty for the object itself, and for the main
            member of a directory.

        Returns
        -------
        list of bytes
            One result for each span, in order, clipped at the end of the object.

        Raises
        ------
        FileNotFoundError
            When the object does not exist.
        """

    def read_into(
        self, spans: Sequence[Span], targets: Sequence[memoryview], member: str = ""
    ) -> list[int]:
        """Read byte ranges to where they are wanted.

        Parameters
        ----------
        spans : sequence of Span
        targets : sequence of memoryview
            One for each span, writable, contiguous bytes, as long as the span.
        member : str
            As in `read`.

        Returns
        -------
        list of int
            Bytes that were there for each span; fewer than asked for at the object's end.

        Raises
        ------
        FileNotFoundError
            When the object does not exist.
        """

    def read_members_into(
        self, items: Sequence[tuple[str, Span]], targets: Sequence[memoryview]
    ) -> list[int]:
        """Read byte ranges of several members, in one round where requests can be concurrent.

        Parameters
        ----------
        items : sequence of (str, Span)
            Names and spans as for `read`; a name may come several times.
        targets : sequence of memoryview
            As in `read_into`.

        Returns
        -------
        list of int
            As in `read_into`.

        Raises
        ------
        FileNotFoundError
            When a member does not exist; its `filename` ends with the member's name.
        """

    def member_size(self, member: str) -> int:
        """Bytes in a member of a directory; an empty name means what it means in `read`."""

    def close(self) -> None:
        """Let go of resources; reads that are under way finish, later ones raise ValueError."""


class Place(NamedTuple):
    """Where a span lies in the merged spans of a plan."""

    part: int
    """Number of the merged span."""

    start: int
    """First byte, counted from the start of the merged span."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Merged spans, and where to find each of the original ones."""

    merged: tuple[Span, ...]
    """Ordered by their start."""

    places: tuple[Place, ...]
    """One for each original span, in the original order."""


def coalesce(spans: Sequence[Span], *, max_gap: int, max_size: int) -> Plan:
    """Merge spans that lie close together, so that fewer reads serve them.

    Parameters
    ----------
    spans : sequence of Span
        None of them empty. They may overlap and come in any order.
    max_gap : int
        Merge over at most this many bytes that nobody asked for.
    max_size : int
        No merging makes a span larger than this. A span that is larger already stays whole.

    Returns
    -------
    Plan
        Every original span lies in exactly one merged span.

    Examples
    --------
    >>> plan = coalesce([Span(20, 30), Span(0, 16)], max_gap=4, max_size=100)
    >>> plan.merged
    (Span(start=0, stop=30),)
    >>> plan.places
    (Place(part=0, start=20), Place(part=0, start=0))
    """
    merged: list[Span] = []
    places = [Place(0, 0)] * len(spans)
    # The longest first among equal starts: what it contains then never begins a span of its own.
    for i in sorted(range(len(spans)), key=lambda i: (spans[i].start, -spans[i].stop)):
        span = spans[i]
        if not 0 <= span.start < span.stop:
            raise ValueError(f"a span must have 0 <= start < stop; this one is {span}")
        if merged and _joins(merged[-1], span, max_gap=max_gap, max_size=max_size):
            merged[-1] = Span(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
        places[i] = Place(len(merged) - 1, span.start - merged[-1].start)
    return Plan(tuple(merged), tuple(places))


def _joins(last: Span, span: Span, *, max_gap: int, max_size: int) -> bool:
    contained = span.stop <= last.stop
    near = span.start - last.stop <= max_gap
    return contained or (near and span.stop - last.start <= max_size)


@dataclass(frozen=True, slots=True)
class Reading:
    """Spans of one object as callers gave them, and the merged ones that serve them."""

    spans: tuple[Span, ...]
    """Clipped at the end of the object."""

    plan: Plan
    """Of the spans that are not empty."""

    @classmethod
    def of(cls, spans: Sequence[Span], *, size: int, max_gap: int, max_size: int) -> Reading:
        """Plan to read.

        Parameters
        ----------
        spans : sequence of Span
            As callers of `ByteReader.read` give them: some may be empty, or go past the end.
        size : int
            Bytes in the object. A length that comes from a damaged file is thus never allocated.
        max_gap, max_size : int
            As in `coalesce`.

        Returns
        -------
        Reading
        """
        clipped = tuple(clip(span, size) for span in spans)
        wanted = [span for span in clipped if span.start < span.stop]
        return cls(clipped, coalesce(wanted, max_gap=max_gap, max_size=max_size))

    def results(self, parts: Sequence[bytes]) -> list[bytes]:
        """Cut the results for the callers out of what was read.

        Parameters
        ----------
        parts : sequence of bytes
            One for each span of `plan.merged`; shorter where the object ended.

        Returns
        -------
        list of bytes
            One for each span.
        """
        places = iter(self.plan.places)
        results = []
        for start, stop in self.spans:
            if start == stop:
                results.append(b"")
            else:
                part, at = next(places)
                results.append(parts[part][at : at + stop - start])
        return results


def read_merged(
    spans: Sequence[Span],
    fetch: Callable[[tuple[Span, ...]], Sequence[bytes]],
    *,
    size: int,
    max_gap: int,
    max_size: int,
) -> list[bytes]:
    """Serve spans out of merged reads.

    Parameters
    ----------
    spans, size, max_gap, max_size
        As in `Reading.of`.
    fetch : callable
        Takes merged spans that lie inside the object, gives the bytes of each.

    Returns
    -------
    list of bytes
        One for each span, clipped at `size`.
    """
    reading = Reading.of(spans, size=size, max_gap=max_gap, max_size=max_size)
    return reading.results(fetch(reading.plan.merged))


def read_by_member(
    items: Sequence[tuple[str, Span]],
    targets: Sequence[memoryview],
    read_into: Callable[[list[Span], list[memoryview], str], list[int]],
) -> list[int]:
    """Serve `ByteReader.read_members_into` by one call of `read_into` for each member.

    Parameters
    ----------
    items : sequence of (str, Span)
    targets : sequence of memoryview
    read_into : callable
        Takes spans, targets and the member's name.

    Returns
    -------
    list of int
        One for each item, in order.
    """
    counts = [0] * len(items)
    for member, numbers in group_by_member(items).items():
        spans, rooms = [items[i][1] for i in numbers], [targets[i] for i in numbers]
        for i, count in zip(numbers, read_into(spans, rooms, member), strict=True):
            counts[i] = count
    return counts


def copy_into(parts: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
    """Serve `ByteReader.read_into` out of what `ByteReader.read` gave.

    Parameters
    ----------
    parts : sequence of bytes
    targets : sequence of memoryview

    Returns
    -------
    list of int
    """
    for part, target in zip(parts, targets, strict=True):
        target[: len(part)] = part
    return [len(part) for part in parts]


def group_by_member(items: Sequence[tuple[str, Span]]) -> dict[str, list[int]]:
    """Positions of the items of each member.

    Examples
    --------
    >>> group_by_member([("a", Span(0, 9)), ("b", Span(0, 9)), ("a", Span(20, 30))])
    {'a': [0, 2], 'b': [1]}
    """
    groups: dict[str, list[int]] = {}
    for i, (member, _) in enumerate(items):
        groups.setdefault(member, []).append(i)
    return groups


def clip(span: Span, size: int) -> Span:
    """Cut a span at the end of an object of `size` bytes.

    Raises
    ------
    ValueError
        When the span begins before the object or ends before it begins.
    """
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"a span must have 0 <= start <= stop; this one is {span}")
    return Span(min(start, size), min(stop, size))
