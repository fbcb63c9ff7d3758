"""The protocol of a frame being written: staged by many processes, joined and published."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from b2nd_dask.storage.byte_reader import ByteReader, Identity
    from b2nd_dask.storage.read.location import Location
    from b2nd_dask.storage.write.kept_files import KeptFiles


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
    """The staged ranges that make up the data region, or the chunk files, in order; one range where
    `Staging.join` has put all in one file already."""


class Staging(Protocol):
    """A frame being written to one target. Pickles, so that tasks in any process can append."""

    @property
    def label(self) -> str:
        """Path or URL of the target, for messages."""

    @property
    def key(self) -> str:
        """Identifies this write: 16 hexadecimal digits."""

    @property
    def batch_nbytes(self) -> int:
        """Compressed bytes that a task should gather for one `append`."""

    def prepare(self) -> None:
        """Look at the target and make the staging area.

        Raises
        ------
        FileExistsError
            The target is there and may not be replaced, or is no frame.
        OSError
            Nothing can be written there.
        """

    def make_area(self) -> None:
        """Make the staging area, unless it is there; the target is not looked at."""

    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area, which is removed with it."""

    def reader(self) -> ByteReader:
        """Open the target, for the caller to close."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock for `join` and `publish`: of runs of one commit at once, one goes first.

        Raises
        ------
        FileNotFoundError
            The staging area is gone: the write is over, or was given up.
        """

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

    @property
    def resumable(self) -> bool:
        """Whether tasks leave manifests of what they staged, for a later run of the same write."""

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Read staged bytes back; other bytes, or fewer, where they are not there any more."""

    @property
    def kept(self) -> KeptFiles:
        """Small named files in the area."""

    def sync(self, parts: Sequence[str]) -> None:
        """Wait until parts of this staging area are on the disk, or in the store."""

    def join(self, chunks: StagedChunks) -> Placement:
        """Bring the staged chunks together."""

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Add head and tail to the chunks; make the frame visible, all at once.

        What was staged stays until `discard`.
        """

    def discard(self) -> None:
        """Remove everything that was staged; the target stays as it is."""


class UpdateStaging(Staging, Protocol):
    """A change of a frame in place. `exclusive` also keeps all others from changing the frame."""

    def rebased(self, identity: Identity, *, frame_len: int, cbytes: int) -> Self:
        """Change another state of the same frame, with what was staged already.

        Parameters
        ----------
        identity : Identity
            Of the frame as it is now; publishing checks that it still is that.
        frame_len, cbytes : int
            As its header says.
        """


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
