"""The protocol of all writes: many processes stage chunks, a commit joins and publishes them."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from b2nd_dask.storage.byte_reader import Identity
    from b2nd_dask.storage.read.location import Location

logger = logging.getLogger("b2nd_dask")

#: Suffix of the small files in an area.
FILE_SUFFIX = ".kept"
#: Text of FileExistsError at the start of a write.
EXISTS = 'the target exists already; pass mode="w" to replace it'


class Run(NamedTuple):
    """A contiguous range of staged bytes."""

    part: str
    """Name of the part; each process has parts of its own."""
    start: int
    stop: int


class Placement(NamedTuple):
    """Layout of the chunks in the frame."""

    positions: NDArray[np.int64]
    """For the offset index: offsets in the data region, or numbers of chunk files."""
    data_nbytes: int
    """Bytes of the data region, or of all chunk files."""
    runs: tuple[Run, ...] = ()
    """Staged ranges of the data region, or of the chunk files, in order. The first range of a
    contiguous frame on a disk stays in its file, which also has the header."""


@dataclass(frozen=True)
class Staging(ABC):
    """A frame being written to one target. Pickles, so that tasks in any process can append."""

    key: str
    """Identifies this write, and its staging area among those of the target: 16 hexadecimal
    digits."""
    resumable: bool
    """Whether tasks write manifests of their staged chunks, which a later run of the same write
    reuses; the area then outlives a failure."""
    replace: bool
    """Whether an existing frame may be replaced."""
    location: Location
    """Location of the target. A local path is absolute, with symlinks resolved, so that a write
    does not replace a link."""
    replaces: Identity | None = field(default=None, kw_only=True)
    """Identity of the frame to replace at a local path; by default any may be replaced."""

    batch_nbytes: ClassVar[int]
    """Compressed bytes that a task should gather for one `append`."""

    @property
    def label(self) -> str:
        """Path or URL of the target, for messages, without secrets."""
        return self.location.label

    def prepare(self) -> None:
        """Check the target and make the staging area; raises the errors of both."""
        self.check_target()
        self.make_area()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare for the block. If it fails, discard the area, unless it can be resumed."""
        self.prepare()
        try:
            yield
        except BaseException:
            if not self.resumable:
                # also after an interrupt: the disk must not fill up
                self.clean_up()
            raise

    @property
    def is_prepared(self) -> bool:
        """Whether this process is in the block of `prepared`, and has not discarded the area."""
        return False

    @abstractmethod
    def check_target(self) -> None:
        """Check that the target may be written or replaced.

        Raises FileExistsError if the target exists and may not be replaced, or is no frame; OSError
        if it is not writable.
        """

    @abstractmethod
    def make_area(self) -> None:
        """Make the staging area, unless it exists; raise OSError if it is not writable."""

    @abstractmethod
    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area; it is removed with the area."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock for `join` and `publish`, so that concurrent runs of one commit take turns.

        Stores need no lock, since joining changes no staged object. Raises FileNotFoundError if the
        staging area is gone: the write has ended, or was given up.
        """
        return nullcontext()

    @abstractmethod
    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage compressed chunks in any thread of any process; return a run for each.

        With more chunks per call, fewer files are opened, and objects are fewer and larger.
        """

    @abstractmethod
    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Read staged bytes; missing ranges return other bytes, or fewer.

        The caller must check the names of parts.
        """

    @abstractmethod
    def put(self, name: str, payload: bytes, *, fsync: bool = True, only_new: bool = False) -> bool:
        """Put a small file into the area; it replaces a file of the same name.

        With `only_new`, change nothing and return False if the name exists; some stores cannot
        detect concurrent calls, and keep the later file. A put is atomic, with `fsync` also in a
        power cut. Names consist of letters, digits and hyphens. Raises FileNotFoundError if the
        staging area is gone.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the small files; empty without an area."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Read a small file; raise FileNotFoundError if it does not exist."""

    def sync(self, parts: Sequence[str]) -> None:  # noqa: B027 - not abstract
        """Wait until parts of this staging area are on the disk; stores need no sync."""

    @abstractmethod
    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Lay out the staged chunks in the frame, from one row each.

        `parts` are names. Rows have the columns `part` (a position in `parts`), `start`, `nbytes`.
        """

    @abstractmethod
    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Add head and tail to the chunks and make the frame visible in one step.

        Staged bytes stay until `discard`.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove the staging area; the target does not change."""

    def clean_up(self) -> None:
        """Discard; log a failure and continue, since the target is not affected."""
        try:
            self.discard()
        except Exception as error:  # noqa: BLE001 - each store has its own error classes
            logger.warning(
                "%s: the staged files of the key %s could not be removed (%s); "
                "remove them by `remove_staging`",
                self.label,
                self.key,
                error,
            )


def adjacent(part: str, payloads: Sequence[bytes], start: int = 0) -> list[Run]:
    """Compute the runs of payloads that lie one after the other in a part."""
    edges = itertools.accumulate(map(len, payloads), initial=start)
    return [Run(part, *ends) for ends in itertools.pairwise(edges)]


def lay_out(
    parts: Sequence[str], rows: NDArray[Any], first: Run, header_len: int, *, small: int = 0
) -> Placement:
    """Lay out chunks behind the `first` part, whose own chunks stay, or behind a frame.

    Parts and frame start with the `header_len` bytes of the header. Ranges of adjacent chunks of a
    part stay together. Ranges below `small` bytes come first, then the others, both in the order of
    their first chunks.
    """
    positions = rows["start"] - header_len
    moves = np.array([name != first.part for name in parts], np.bool_)[rows["part"]]
    order = np.lexsort((rows["start"], rows["part"]))
    order = order[moves[order]]
    part, start, nbytes = (rows[name][order] for name in ("part", "start", "nbytes"))
    # the chunks that begin a range, and the number of each chunk's range
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (part[1:] != part[:-1]) | (start[1:] != (start + nbytes)[:-1])
    heads, number = np.flatnonzero(begins), np.cumsum(begins) - 1
    sizes = np.add.reduceat(nbytes, heads)
    # the ranges in their new order, and their new offsets
    ranked = np.lexsort((np.minimum.reduceat(order, heads), sizes >= small))
    first_nbytes = first.stop - header_len
    moved = np.empty_like(sizes)
    moved[ranked] = first_nbytes + np.cumsum(sizes[ranked]) - sizes[ranked]
    positions[order] = start + (moved - start[heads])[number]
    ends = part[heads], start[heads], start[heads] + sizes
    runs = [Run(parts[p], a, b) for p, a, b in np.stack(ends, axis=1)[ranked].tolist()]
    return Placement(positions, first_nbytes + int(sizes.sum()), (first, *runs))


def number_chunks(parts: Sequence[str], rows: NDArray[Any], used: Container[int] = ()) -> Placement:
    """Assign the first unused numbers of chunk files to the chunks of a sparse frame."""
    free = itertools.islice((n for n in itertools.count() if n not in used), len(rows))
    runs = tuple(Run(parts[part], 0, n) for part, n in rows[["part", "nbytes"]].tolist())
    return Placement(np.array([*free], np.int64), sum(run.stop for run in runs), runs)
