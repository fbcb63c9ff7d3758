"""`ByteReader`, the base of readers; byte ranges, their merging, identities, chunk file names."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

HEAD_NBYTES = 1 << 16
"""First bytes that an open reads: the header of nearly every frame, or a whole small frame."""

TAIL_NBYTES = 1 << 16
"""Last bytes that an open of a larger object reads at the same time: often index and trailer."""

#: File of a sparse frame with everything but the chunks (docs/format.md, Sparse directory).
MAIN_MEMBER = "chunks.b2frame"
#: Chunk files; numbers end at 2**32 - 1.
CHUNK_MEMBER = re.compile(r"[0-9A-F]{8}\.chunk")


class Span(NamedTuple):
    """A half-open range of bytes."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies one state of an object."""

    size: int
    """Bytes in the object."""

    token: str
    """Changes with the object: from mtime and inode, an etag, or a digest."""

    changed: int = field(default=0, compare=False)
    """Ctime of a local file in ns; 0 for other objects. Also changes if the file is renamed, or its
    mtime is set back."""

    def is_untouched(self, since: Identity) -> bool:
        """Whether this is the same state with the same ctime."""
        return self == since and self.changed == since.changed


class Response(NamedTuple):
    """The response of a store to a request."""

    start: int
    """Start of the data in the object; 0 if the server ignores ranges."""
    data: bytes
    """Bytes up to the end of the span or of the object; empty if the span lies past the end."""
    identity: Identity
    """Identity of the object at the time of the response."""
    ranges_ignored: bool = False


class Requester(Protocol):
    """Requests ranges of an object, or of members of a directory, before they are read."""

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range without waiting for the response."""


class Item(NamedTuple):
    """A range to prefetch."""

    requester: Requester
    member: str
    span: Span
    """In the object or member of the requester."""


class ByteReader(ABC):
    """Reads byte ranges of one object, or of the members of one directory.

    Many threads may share a reader. Readers do not pickle; a `Location` does.
    """

    label: str
    """Path or URL for messages; never holds secrets."""
    identity_is_cheap: bool = True
    """Whether `identity` costs microseconds, so that every read can check it."""
    batch_nbytes: int = 1 << 20
    """Best number of bytes per call, for callers that divide a long read into calls."""
    fills_buffers: bool = False
    """Whether `read_each` reads into the caller's buffers, which it then needs."""
    # 0, since a pread from the page cache costs less than merging ranges and cutting them again
    max_gap: int = 0
    """Number of bytes whose reading costs about as much as a separate request.

    `read` merges spans across gaps up to this size. Read plans use it to choose between parts of a
    chunk and the whole chunk.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame: members instead of one object."""
        return False

    def item(self, member: str, span: Span) -> Item | None:
        """Describe a range to prefetch; None if it needs no request, or cannot be prefetched."""
        return None

    @abstractmethod
    def identity(self) -> Identity:
        """Identity of the object, or of the main member of a directory; looked up at each call."""

    def opened_identity(self) -> Identity:
        """Identity of the open object, even if its name now refers to another object."""
        return self.identity()

    @abstractmethod
    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges; return the bytes of each in order. They may overlap, in any order.

        Results are clipped at the end of the object. `member` is the name of a member of a
        directory, empty for the object itself and for the main member of a directory. Raises
        FileNotFoundError if the object does not exist.
        """

    def read_each(
        self, items: Sequence[tuple[str, Span]], buffers: Sequence[memoryview]
    ) -> Generator[tuple[memoryview, int]]:
        """Read byte ranges one after the other, or as the responses of a store arrive.

        An item is the name of a member and a span, as for `read`; names may repeat. Yields for each
        its bytes, clipped at the end of the member, and the size of the member. If the reader fills
        buffers, there is a writable, contiguous buffer for each item, as long as the span, and the
        bytes are in it. Requests to a store are concurrent. Raises FileNotFoundError if the object
        or a member does not exist; `filename` ends with the member's name.
        """
        size = self.opened_identity().size
        for member, span in items:
            (data,) = self.read([span], member)
            yield memoryview(data), size

    @abstractmethod
    def close(self) -> None:
        """Release resources; running reads finish, later ones raise ValueError."""

    def require_no_member(self, member: str) -> None:
        """Check that a member name is empty, which means the object itself."""
        if member:
            raise ValueError(f"{self.label} is one object; it has no member {member!r}")


def chunk_member(number: int) -> str:
    """Name of the chunk file with a number of the offset index.

    Examples
    --------
    >>> chunk_member(171)
    '000000AB.chunk'
    """
    return f"{number:08X}.chunk"


def coalesce(
    spans: Sequence[Span], objects: Sequence[Hashable] = (), *, max_gap: int, max_size: int
) -> list[tuple[Span, list[int]]]:
    """Merge spans that lie close together, for fewer reads.

    The spans may be empty, overlap and come in any order. `objects` has the object of each; by
    default there is one. Merged spans include gaps of at most `max_gap` bytes, and have at most
    `max_size` bytes unless a single span has more. Returns the merged spans, those of an object
    ordered by their start, each with the positions of its spans in the argument. Every nonempty
    span lies in exactly one merged span.

    Examples
    --------
    >>> coalesce([Span(20, 30), Span(0, 16)], max_gap=4, max_size=100)
    [(Span(start=0, stop=30), [1, 0])]
    """
    groups: dict[Hashable, list[int]] = {}
    for i, span in enumerate(spans):
        start, stop = clip(span, sys.maxsize)
        if start < stop:
            groups.setdefault(objects[i] if objects else None, []).append(i)
    merged: list[tuple[Span, list[int]]] = []
    for group in groups.values():
        last: Span | None = None
        inside: list[int] = []
        # of equal starts the longest comes first, so spans inside it never start a merged span
        for i in sorted(group, key=lambda i: (spans[i].start, -spans[i].stop)):
            start, stop = spans[i]
            near = last and start - last.stop <= max_gap and stop - last.start <= max_size
            if last and (near or stop <= last.stop):
                last = Span(last.start, max(last.stop, stop))
                merged.pop()
            else:
                last, inside = spans[i], []
            inside.append(i)
            merged.append((last, inside))
    return merged


def clip(span: Span, size: int) -> Span:
    """Cut a span at the end of an object of `size` bytes.

    Raises ValueError if the span starts before the object, or ends before its own start.
    """
    start, stop = span
    if not 0 <= start <= stop:
        raise ValueError(f"a span must have 0 <= start <= stop; this one is {span}")
    return Span(min(start, size), min(stop, size))
