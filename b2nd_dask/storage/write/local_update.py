"""Changes of existing local frames: new chunks beside the old ones, then one atomic switch.

Bytes of the old state stay unchanged until the new state is on the disk. A crash leaves the old
state, and bytes or chunk files that no index names. The sync before the switch always happens: a
switch that reaches the disk before its index would destroy the whole frame. `fsync` only determines
whether to wait for the switch itself.

A change holds the lock of its frame, or of its dataset.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import CHUNK_MEMBER, MAIN_MEMBER, Identity
from b2nd_dask.storage.read.local_reader import identity_at, identity_of
from b2nd_dask.storage.write.local_names import about, keep_mode
from b2nd_dask.storage.write.local_staging import ContiguousStaging, LocalStaging, SparseStaging
from b2nd_dask.storage.write.staging import Placement, Run, lay_out, number_chunks
from b2nd_dask.system import flush, lock, opened, pwrite, require_writable, write_file

logger = logging.getLogger("b2nd_dask")

#: First bytes of each written chunk: versions of the chunk format and of the codec's format
#: (docs/format.md, Chunk header). No frame and no ZIP archive starts with them.
_CHUNK_BEGIN = bytes([5, 1])
#: Bytes behind a frame that are read together.
_AT_ONCE = 1 << 20
CHANGED = "the frame changed while its update was computed"
#: Pauses between two attempts to lock, in seconds: publishing a change takes milliseconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
#: Seconds between the log messages of a waiting writer.
_LONG = 10.0


class FrameState(NamedTuple):
    """A state of a frame that is changed in place."""

    identity: Identity
    sparse: bool
    header_len: int
    frame_len: int
    """Bytes of the frame, by its header."""
    cbytes: int
    """Bytes of the frame's chunks, by its header."""
    numbers: frozenset[int] = frozenset()
    """Numbers of the chunk files that a sparse frame's index names; only `join` needs them."""


@dataclass(frozen=True)
class LocalUpdate(LocalStaging):
    """A change of a frame in place, from the state `old`."""

    old: FrameState
    """State of the frame before the update; publishing checks its identity."""

    def check_target(self) -> None:
        """Check that the frame may be written; see `Staging.prepare`."""
        with about(self.target), _unless_replaced(Path(self.target), self.old.identity):
            os.close(_open_to_write(Path(self.target))[1])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the frame, too; see `Staging.exclusive`."""
        locked = frame_locked(Path(self.target), self.directory, identity=self.old.identity)
        with super().exclusive(), locked:
            yield


@dataclass(frozen=True)
class ContiguousUpdate(LocalUpdate, ContiguousStaging):
    """New chunks for a contiguous frame, appended behind its end."""

    def check_target(self) -> None:
        """Also check the bytes behind the frame's end."""
        super().check_target()
        with about(self.target), opened(self.target, os.O_RDONLY | os.O_NONBLOCK) as fd:
            # if another frame has this name, the commit raises
            if identity_of(os.fstat(fd)) == self.old.identity:
                require_end(fd, self.old.frame_len, self.target)

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Lay the chunks out behind the old end; see `Staging.join`."""
        return lay_out(parts, rows, Run("", 0, self.old.frame_len), self.header_len)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Append chunks, index and trailer, sync, then write the header; see `Staging.publish`."""
        with about(self.target), opened(self.target, os.O_RDWR) as fd:
            # never write into a frame that has replaced the locked one
            if identity_of(os.fstat(fd)) != self.old.identity:
                raise StaleFrameError(CHANGED, path=self.target)
            require_end(fd, self.old.frame_len, self.target)
            try:
                self.append_all(fd, placement, tail)
                flush(fd)
            except BaseException:
                os.ftruncate(fd, self.old.frame_len)
                raise
            # the switch: until now the old header refers to the old index. Only lengths and shape
            # differ. With few fixed metalayers these are in the first 512 bytes, which disks write
            # atomically
            pwrite(fd, head, 0)
            if self.fsync:
                flush(fd)


@dataclass(frozen=True)
class SparseUpdate(LocalUpdate, SparseStaging):
    """New chunk files for a sparse frame."""

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Give the chunks unused numbers; see `Staging.join`."""
        with about(self.target):
            members = list(Path(self.target).iterdir())
        used = {int(p.stem, 16) for p in members if CHUNK_MEMBER.fullmatch(p.name)}
        # a file that the index names may be missing: do not use its number for another chunk
        new = number_chunks(parts, rows, used | self.old.numbers)
        return new._replace(data_nbytes=self.old.cbytes + new.data_nbytes)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Link the chunk files in, sync, replace the index file; see `Staging.publish`."""
        index, flags = self.directory / MAIN_MEMBER, os.O_RDONLY | os.O_DIRECTORY
        # all steps use this descriptor: never write into a directory that takes the name
        with about(self.target), opened(self.target, flags) as folder:
            write_file(index, head + tail)
            state = os.stat(MAIN_MEMBER, dir_fd=folder, follow_symlinks=False)
            if identity_of(state) != self.old.identity:
                raise StaleFrameError(CHANGED, path=self.target)
            # keeps the permission to change the frame again
            keep_mode(index, Path(self.target, MAIN_MEMBER))
            with self.linked(placement, folder, fsync=True):
                flush(folder)
            # outside of `linked`: if this raises, the new index may still be in place and need them
            os.rename(index, MAIN_MEMBER, dst_dir_fd=folder)
            if self.fsync:
                flush(folder)


def require_end(fd: int, frame_len: int, label: str) -> None:
    """Check that nothing follows a frame in its open file, except bytes of a killed writer.

    Those start with a chunk; after a power cut they may be zeros. Raises FileExistsError for other
    bytes, such as another frame, which a change would remove.
    """
    os.lseek(fd, frame_len, os.SEEK_SET)
    blocks = iter(partial(os.read, fd, _AT_ONCE), b"")
    # each byte is read once: meanwhile another process may commit a change
    first = next(blocks, b"")
    is_chunk = first.startswith(_CHUNK_BEGIN)
    if not is_chunk and any(block.strip(b"\0") for block in chain([first], blocks)):
        raise FileExistsError(
            errno.EEXIST,
            f"other bytes follow the frame at byte {frame_len} of this file, and a change of the "
            "frame would remove them; copy the frame to a file of its own, and change the copy",
            label,
        )


@contextmanager
def frame_locked(
    path: Path,
    area: Path | None = None,
    *,
    identity: Identity | None = None,
    is_directory: bool = False,
    shared: bool = False,
    wait: bool = True,
) -> Iterator[None]:
    """Hold the lock of a frame during a block; by default wait for it.

    The lock is on the file of the frame, in a sparse frame on the index file. With `is_directory`
    it is on the directory at the path, such as a dataset. The wait ends if `area`, the staging area
    of the waiting write, is removed. `identity` is that of the expected frame.

    Raises FileNotFoundError if there is no frame, or the staging area was removed; OSError if the
    file system has no locks; `StaleFrameError` if another frame has replaced the expected one;
    BlockingIOError if another process holds the lock and `wait` is false.
    """
    require_writable(str(path))
    with _unless_replaced(path, identity):
        fd = _acquire(path, area, is_directory=is_directory, shared=shared, wait=wait)
        try:
            yield
        finally:
            os.close(fd)


@contextmanager
def _unless_replaced(path: Path, identity: Identity | None) -> Iterator[None]:
    """Raise StaleFrameError for an error after another writer has replaced the frame."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileNotFoundError) as error:
        # a frame of the other form has replaced it, or the directory of a replaced frame is emptied
        if identity is not None and path.exists() and identity_at(str(path)) != identity:
            raise StaleFrameError(CHANGED, path=str(path)) from error
        raise


def _acquire(path: Path, area: Path | None, *, is_directory: bool, shared: bool, wait: bool) -> int:
    """Poll until the lock is acquired; return the descriptor that holds it.

    A blocking call would not notice the removal of the staging area, nor a new file that replaces
    the locked one.
    """
    label = str(path)
    pause, start, nlogged = _FIRST_PAUSE, time.monotonic(), 0
    while True:
        # an interrupt of the write removes its staging area
        if area is not None and not area.is_dir():
            message = "the staging area of this write was removed while it waited for a lock"
            raise FileNotFoundError(errno.ENOENT, message, label)
        with about(label), ExitStack() as undo:
            if is_directory:
                file, fd = path, os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            else:
                file, fd = _open_to_write(path)
            undo.callback(os.close, fd)
            is_ours = lock(fd, shared=shared)
            if is_ours is None:
                message = "this file system has no locks, so frames on it cannot be changed"
                raise OSError(errno.ENOLCK, message, label)
            # others may have replaced the file between open and lock
            if is_ours and _is_named(file, fd):
                undo.pop_all()
                return fd
        if not (wait or is_ours):
            problem = "another process changes this dataset; try again when it is done"
            raise BlockingIOError(errno.EAGAIN, problem, label)
        if time.monotonic() - start > _LONG * (nlogged + 1):
            nlogged += 1
            logger.info("%s: waits for another process that changes it", label)
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the waiting writers
        pause = min(2 * pause, _LONGEST_PAUSE)


def _open_to_write(path: Path) -> tuple[Path, int]:
    """Open the file of a frame that is to be locked; return its path and descriptor."""
    file = path / MAIN_MEMBER if path.is_dir() else path
    try:
        return file, os.open(file, os.O_RDWR)
    except PermissionError as error:
        # in a folder that this process cannot enter, this raises PermissionError
        file.stat()
        # not EACCES, the error of such a folder
        problem = "the frame cannot be changed: its file is read-only, or belongs to another user"
        raise PermissionError(errno.EPERM, problem, str(path)) from error


def _is_named(path: str | Path, fd: int) -> bool:
    """Whether a path still names an open file or directory, which nothing has replaced."""
    # open, since on NFS the result of a plain stat may be seconds old
    with suppress(FileNotFoundError), opened(path, os.O_RDONLY) as named:
        return os.path.samestat(os.fstat(named), os.fstat(fd))
    return False
