"""What every frame is that is being written: staged by many processes, joined and published."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from b2nd_dask.storage.byte_reader import ByteReader
    from b2nd_dask.storage.read.location import Location

#: Of the small files in an area.
FILE_SUFFIX = ".kept"


class Run(NamedTuple):
    """A contiguous range of staged bytes."""

    part: str
    """Name of their part; each process has parts of its own."""
    start: int
    stop: int


@dataclass(frozen=True, eq=False, slots=True)
class StagedChunks:
    """Where chunks of a frame are staged."""

    parts: tuple[str, ...]
    """Names of the parts."""
    rows: NDArray[Any]
    """One for each chunk. Nothing here looks at other columns than `part`, which is a position in
    `parts`, `start` and `nbytes`."""


class Placement(NamedTuple):
    """Layout of the chunks in the frame."""

    positions: NDArray[np.int64]
    """For the offset index: offsets in the data region, or numbers of chunk files."""
    data_nbytes: int
    """Bytes of the data region, or of all chunk files."""
    runs: tuple[Run, ...] = ()
    """The staged ranges that make up the data region, or the chunk files, in order. Of a contiguous
    frame on a disk the first is what stays in its file, with the header."""


@dataclass(frozen=True)
class Staging(ABC):
    """A frame being written to one target. Pickles, so that tasks in any process can append."""

    key: str
    """Identifies this write, and its staging area among those of the target: 16 hexadecimal
    digits."""
    resumable: bool
    """Whether tasks leave manifests of what they staged, for a later run of the same write; then
    the area outlives a failure."""
    replace: bool
    """Whether a frame that is there may be replaced."""

    batch_nbytes: ClassVar[int]
    """Compressed bytes that a task should gather for one `append`."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Path or URL of the target, for messages, without secrets."""

    def prepare(self) -> None:
        """Look at the target and make the staging area; errors as for both."""
        self.check_target()
        self.make_area()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare; this process discards the area, at the latest when the block fails."""
        self.prepare()
        yield

    @property
    def is_prepared(self) -> bool:
        """Whether this process is in the block of `prepared`, and has not discarded the area."""
        return False

    @abstractmethod
    def check_target(self) -> None:
        """Check that the target may be written or replaced.

        Raises
        ------
        FileExistsError
            The target is there and may not be replaced, or is no frame.
        OSError
            Nothing can be written there.
        """

    @abstractmethod
    def make_area(self) -> None:
        """Make the staging area, unless it is there; OSError where nothing can be written."""

    @abstractmethod
    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area, which is removed with it."""

    @abstractmethod
    def reader(self) -> ByteReader:
        """Open the target, for the caller to close."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """Lock for `join` and `publish`: of runs of one commit at once, one goes first.

        Raises
        ------
        FileNotFoundError
            The staging area is gone: the write is over, or was given up.
        """

    @abstractmethod
    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage the chunks of one task; from any thread of any process.

        Parameters
        ----------
        payloads : sequence of bytes
            More at a time make fewer files opened, or fewer and larger objects put.

        Returns
        -------
        list of Run
            One for each.
        """

    @abstractmethod
    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Read staged bytes back; other bytes, or fewer, where they are not there any more."""

    @abstractmethod
    def put(self, name: str, payload: bytes, *, fsync: bool = True) -> None:
        """Put a small file into the area, instead of one of that name.

        Unlike what is appended it is there whole or not at all; also after a power cut if `fsync`.
        Names are letters, digits and hyphens.

        Raises
        ------
        FileNotFoundError
            The staging area is gone.
        """

    @abstractmethod
    def put_new(self, name: str, payload: bytes) -> bool:
        """As `put`; false, and nothing is changed, where there is one of that name.

        Of two at once, a store that cannot tell keeps the later.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Names of what was put; none where there is no area."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Read what was put; FileNotFoundError where there is none."""

    @abstractmethod
    def sync(self, parts: Sequence[str]) -> None:
        """Wait until parts of this staging area are on the disk, or in the store."""

    @abstractmethod
    def join(self, chunks: StagedChunks) -> Placement:
        """Bring the staged chunks together."""

    @abstractmethod
    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Add head and tail to the chunks; make the frame visible, all at once.

        What was staged stays until `discard`.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove everything that was staged; the target stays as it is."""


def runs_of(chunks: StagedChunks) -> list[tuple[int, slice]]:
    """Group chunks that were staged one behind the other.

    Parameters
    ----------
    chunks : StagedChunks
        In the order of part and start.
    """
    part, start = chunks.rows["part"], chunks.rows["start"]
    stop = start + chunks.rows["nbytes"]
    breaks = np.flatnonzero((part[1:] != part[:-1]) | (start[1:] != stop[:-1]))
    edges = [0, *(breaks + 1).tolist(), len(start)]
    return [(int(part[a]), slice(a, b)) for a, b in itertools.pairwise(edges) if a < b]


def in_order(chunks: StagedChunks) -> tuple[StagedChunks, NDArray[Any]]:
    """Sort chunks by part and start; the permutation comes along."""
    order = np.lexsort((chunks.rows["start"], chunks.rows["part"]))
    return StagedChunks(chunks.parts, chunks.rows[order]), order
