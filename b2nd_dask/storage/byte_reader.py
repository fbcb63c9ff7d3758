"""The protocol of all readers of byte ranges, and what they share: identities, names of members."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from b2nd_dask.storage.spans import Span

HEAD_NBYTES = 1 << 16
"""Bytes that an open reads first: the header of nearly every frame, and all of a small one."""

TAIL_NBYTES = 1 << 16
"""Bytes at the end of a larger object, with index and trailer of most frames, that an open reads at
the same time."""

#: In a sparse frame's directory (docs/format.md, Sparse directory): everything but the chunks.
MAIN_MEMBER = "chunks.b2frame"
#: Numbers end at 2**32 - 1.
CHUNK_MEMBER = re.compile(r"[0-9A-F]{8}\.chunk")


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies one state of an object."""

    size: int
    """Bytes in the object."""

    token: str
    """Changes with the object: from mtime and inode, an etag, or a digest."""

    changed: int = field(default=0, compare=False)
    """When a local file was last touched: its ctime, in ns; 0 of other objects. Shows that its
    times were set back, but also what leaves its bytes alone, such as a new name."""

    def is_untouched(self, since: Identity) -> bool:
        """Whether this is the same state, and not even the ctime has changed."""
        return self == since and self.changed == since.changed


class Filled(NamedTuple):
    """The result of reading a span of a member."""

    nbytes: int
    """Bytes that were there; fewer than the span has at the member's end."""

    size: int
    """Bytes in the whole member, which every read learns at no cost."""


class Response(NamedTuple):
    """The response of a store to a request."""

    start: int
    """Where the data begins in the object: at 0 where the server ignores ranges."""
    data: bytes
    """Up to the end of the span or of the object; empty where the span lies past the end."""
    identity: Identity
    """Of the object that the data came from."""
    ranges_ignored: bool = False


class Requester(Protocol):
    """Requests ranges of an object, or of the members of a directory, ahead of who reads them."""

    def begin(self, member: str, span: Span) -> Future[Response]:
        """Request a range, and do not wait for it."""

    def has_in_memory(self, member: str, span: Span) -> bool:
        """Whether a range needs no request."""


class Item(NamedTuple):
    """A range that is going to be read."""

    requester: Requester
    member: str
    """As in `ByteReader.read`."""
    span: Span


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
        """Whether `identity` costs microseconds, so that every read can check it."""

    @property
    def batch_nbytes(self) -> int:
        """Bytes that are best read by one call, where the caller can use them one after another."""

    @property
    def max_gap(self) -> int:
        """Bytes that cost about as much to read as a separate request does.

        `read` merges spans that are no farther apart. Plans that read parts of a chunk compare
        with it whether the parts cost less than the whole.
        """

    def requester(self) -> Requester | None:
        """What requests ranges of this reader without waiting for them; None where nothing does."""

    def identity(self) -> Identity:
        """Identity of the object, or of the main member of a directory; looked up at each call."""

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
        self, items: Sequence[tuple[str, Span]], targets: Sequence[memoryview]
    ) -> list[Filled]:
        """Read byte ranges into buffers, in one round where requests can be concurrent.

        Parameters
        ----------
        items : sequence of (str, Span)
            Names of members and spans as for `read`; a name may come several times.
        targets : sequence of memoryview
            One for each span, writable, contiguous bytes, as long as the span.

        Returns
        -------
        list of Filled
            One for each item, in order.

        Raises
        ------
        FileNotFoundError
            When the object or a member does not exist; its `filename` ends with the member's name.
        """

    def close(self) -> None:
        """Release resources; reads that are under way finish, later ones raise ValueError."""


def filled(parts: Sequence[tuple[bytes, int]], targets: Sequence[memoryview]) -> list[Filled]:
    """Copy bytes of members, each with the member's size, into buffers."""
    for (part, _), target in zip(parts, targets, strict=True):
        target[: len(part)] = part
    return [Filled(len(part), size) for part, size in parts]


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


def chunk_member(number: int) -> str:
    """Name of a chunk file.

    Parameters
    ----------
    number : int
        As in the offset index.

    Examples
    --------
    >>> chunk_member(171)
    '000000AB.chunk'
    """
    return f"{number:08X}.chunk"


def is_member(name: str) -> bool:
    """Whether a sparse frame may have a file of this name; python-blosc2 adds .b2lock."""
    return name in (MAIN_MEMBER, ".b2lock") or CHUNK_MEMBER.fullmatch(name) is not None
