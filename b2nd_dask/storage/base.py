"""What every reader of byte ranges has in common: spans, identities, and the merging of spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAIN_MEMBER = "chunks.b2frame"
"""The member of a sparse frame that holds its header, index and trailer."""


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
    spans : sequence of Span
        As callers of `ByteReader.read` give them: some may be empty, or go past the end.
    fetch : callable
        Takes merged spans that lie inside the object, gives the bytes of each. Not called when
        there is nothing to read.
    size : int
        Bytes in the object. A length that comes from a damaged file is thus never allocated.
    max_gap, max_size : int
        As in `coalesce`.

    Returns
    -------
    list of bytes
        One for each span, clipped at `size`.
    """
    clipped = [clip(span, size) for span in spans]
    wanted = [span for span in clipped if span.start < span.stop]
    plan = coalesce(wanted, max_gap=max_gap, max_size=max_size)
    parts = fetch(plan.merged) if wanted else ()
    places = iter(plan.places)
    results = []
    for start, stop in clipped:
        if start == stop:
            results.append(b"")
        else:
            part, at = next(places)
            results.append(parts[part][at : at + stop - start])
    return results


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
