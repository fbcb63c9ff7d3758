"""Changes of existing local frames: new chunks beside the old ones, then one atomic switch.

Bytes of the old state stay untouched until the new state is on the disk. A crash leaves the old
state, with bytes or chunk files that no index names. `fsync` only determines whether to wait for
the switch itself; the sync before it always happens, since a switch that reaches the disk before
its index would destroy the whole frame.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import (
    CHUNK_MEMBER,
    MAIN_MEMBER,
    ByteReader,
    Identity,
    Span,
    chunk_member,
)
from b2nd_dask.storage.read.local_reader import identity_of
from b2nd_dask.storage.write.local_names import about
from b2nd_dask.storage.write.local_staging import (
    ContiguousStaging,
    LocalStaging,
    SparseStaging,
)
from b2nd_dask.storage.write.locks import CHANGED, frame_locked, is_named, unless_replaced
from b2nd_dask.storage.write.staging import Placement, Run, StagedChunks
from b2nd_dask.system import flush, link_or_copy, opened, pwrite, sync, write_file

#: First bytes of each written chunk: versions of the chunk format and of the codec's format
#: (docs/format.md, Chunk header). No frame and no ZIP archive starts with them.
_CHUNK_BEGIN = bytes([5, 1])


@dataclass(frozen=True)
class LocalUpdate(LocalStaging):
    """A change of a frame in place; other fields make it a change of another state of the frame."""

    identity: Identity
    """Identity of the frame before the update; publishing checks it."""
    frame_len: int
    """Bytes of the frame, by its header."""
    cbytes: int
    """Bytes of the frame's chunks, by its header."""

    locked_member: ClassVar[str]
    """File in the frame that carries its lock; empty for the frame itself."""

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the frame, too; see `Staging.exclusive`."""
        file = Path(self.target, self.locked_member)
        with (
            super().exclusive(),
            frame_locked(file, self.target, self.directory, identity=self.identity),
        ):
            yield


@dataclass(frozen=True)
class ContiguousUpdate(LocalUpdate, ContiguousStaging):
    """New chunks for a contiguous frame, appended behind its end."""

    locked_member = ""

    def check_target(self) -> None:
        """Check the bytes behind the frame's end; see `Staging.prepare`."""
        with unless_replaced(self.target, self.identity), closing(self.reader()) as reader:
            # else the commit raises, since another frame has this name
            if reader.opened_identity() == self.identity:
                require_end(reader, self.frame_len)

    def join(self, chunks: StagedChunks) -> Placement:
        """Lay the chunks out behind the old end; see `Staging.join`."""
        return self.laid_out(chunks, Run("", 0, self.frame_len))

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Append chunks, index and trailer, sync, then write the header; see `Staging.publish`."""
        with about(self.target), opened(self.target, os.O_RDWR) as fd:
            # never write into a frame that has replaced the locked one
            if identity_of(os.fstat(fd)) != self.identity:
                raise StaleFrameError(CHANGED, path=self.target)
            _require_own(os.pread(fd, 2, self.frame_len), self.frame_len, self.target)
            try:
                self.append_all(fd, placement, tail)
                flush(fd)
            except BaseException:
                os.ftruncate(fd, self.frame_len)
                raise
            # the switch: until now the old header refers to the old index
            differing, at = _changed(os.pread(fd, len(head), 0), head)
            pwrite(fd, [differing], at)
            if self.fsync:
                flush(fd)


@dataclass(frozen=True)
class SparseUpdate(LocalUpdate, SparseStaging):
    """New chunk files for a sparse frame."""

    locked_member = MAIN_MEMBER

    def check_target(self) -> None:
        """Do nothing: `join` skips the numbers of existing chunk files; see `Staging.prepare`."""

    def join(self, chunks: StagedChunks) -> Placement:
        """Give the chunks unused numbers; see `Staging.join`."""
        with about(self.target):
            members = list(Path(self.target).iterdir())
        used = {int(p.stem, 16) for p in members if CHUNK_MEMBER.fullmatch(p.name)}
        count = len(chunks.rows)
        free = itertools.islice((n for n in itertools.count() if n not in used), count)
        positions = np.fromiter(free, np.int64, count)
        runs = [Run(chunks.parts[part], 0, 0) for part in chunks.rows["part"].tolist()]
        nbytes = self.cbytes + int(chunks.rows["nbytes"].sum())
        return Placement(positions, nbytes, tuple(runs))

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Link the chunk files in, sync, replace the index file; see `Staging.publish`."""
        index, flags = self.directory / MAIN_MEMBER, os.O_RDONLY | os.O_DIRECTORY
        # all steps use this descriptor: never write into a directory that takes the name
        with about(self.target), opened(self.target, flags) as folder:
            write_file(index, head + tail)
            try:
                self._require_unchanged(folder)
                self._link_in(placement, folder)
                # even if this raises, the new index may be in place: its chunks stay
                os.rename(index, MAIN_MEMBER, dst_dir_fd=folder)
                if self.fsync:
                    flush(folder)
            except FileNotFoundError as error:
                if not is_named(self.target, folder):
                    # the frame was replaced; its directory is being emptied
                    raise StaleFrameError(CHANGED, path=self.target) from error
                raise

    def _require_unchanged(self, folder: int) -> None:
        state = os.stat(MAIN_MEMBER, dir_fd=folder, follow_symlinks=False)
        if identity_of(state) != self.identity:
            raise StaleFrameError(CHANGED, path=self.target)

    def _link_in(self, placement: Placement, folder: int) -> None:
        """Link all staged files into the frame and sync them; on an error, remove the links."""
        linked: list[str] = []
        try:
            for number, run in zip(placement.positions.tolist(), placement.runs, strict=True):
                name = chunk_member(number)
                # not moved: a repeated commit needs the file under its staged name
                link_or_copy(self.directory / run.part, name, folder)
                linked.append(name)
                sync(name, folder)
            flush(folder)
        except BaseException:
            # no index names them
            for name in linked:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
            raise


def require_end(reader: ByteReader, frame_len: int) -> None:
    """Check that nothing follows a frame in its file, except bytes of a killed writer.

    Raises FileExistsError for other bytes, such as another frame: a change would remove them.
    """
    (behind,) = reader.read([Span(frame_len, frame_len + 2)])
    _require_own(behind, frame_len, reader.label)


def _require_own(behind: bytes, frame_len: int, label: str) -> None:
    """Check the two bytes behind a frame: bytes of a killed writer start with a chunk."""
    if behind not in (b"", _CHUNK_BEGIN):
        raise FileExistsError(
            errno.EEXIST,
            f"other bytes follow the frame at byte {frame_len} of this file, and a change of the "
            "frame would remove them; copy the frame to a file of its own, and change the copy",
            label,
        )


def _changed(old: bytes, new: bytes) -> tuple[bytes, int]:
    """Return the bytes from the first difference to the last, and their offset.

    Lengths and shape are at the front of a header. With few fixed metalayers they lie in the first
    512 bytes, which disks write atomically.
    """
    differ = [at for at, (a, b) in enumerate(zip(old, new, strict=True)) if a != b] or [0]
    return new[differ[0] : differ[-1] + 1], differ[0]
