"""Contiguous and sparse frames written to a local (or shared) file system.

Each process appends to its own part file in a hidden directory beside the target, so processes
need no locks for appends. Its threads reserve ranges and write them concurrently. The parts of a
contiguous frame start with room for the header: the largest part becomes the frame, and the kernel
copies the bytes of the others into it.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import MAIN_MEMBER, Span, chunk_member
from b2nd_dask.storage.read.local_reader import LocalReader, identity_at
from b2nd_dask.storage.read.location import Location
from b2nd_dask.storage.write.local_names import (
    LOCK_NAME,
    about,
    area_of,
    keep_mode,
    publish_path,
    remove_area,
    remove_path,
    require_frame,
)
from b2nd_dask.storage.write.staging import (
    EXISTS,
    FILE_SUFFIX,
    Placement,
    Run,
    Staging,
    adjacent,
    lay_out,
    number_chunks,
)
from b2nd_dask.system import (
    at_fork,
    copy_range,
    flush,
    is_locked,
    link_or_copy,
    lock,
    opened,
    pwrite,
    sync,
    write_file,
)

#: If duplicate tasks left a larger fraction of unused bytes in a part, its used bytes are copied.
MAX_WASTE = 1 / 8
#: Folder of small files, which can be listed without the chunk files.
_FOLDER = "kept"
#: Held while a thread reserves a range, not while it writes.
_reserving = threading.Lock()
#: Unique name of this process: process ids and even host names repeat among containers.
_process = uuid.uuid4().hex
#: Device and inode of a part, and end of a range that a thread is writing. All other ranges end
#: within the size of the part.
_unfinished: list[tuple[tuple[int, int], int]] = []


def _reset_after_fork() -> None:
    global _reserving, _process
    _reserving, _process = threading.Lock(), uuid.uuid4().hex
    # the threads of these ranges exist in the parent only
    _unfinished.clear()


at_fork(after_in_child=_reset_after_fork)


@dataclass(frozen=True)
class LocalStaging(Staging):
    """Base of local stagings, contiguous and sparse."""

    header_len: int
    """Bytes of the header: every part of a contiguous frame leaves them free at its start."""
    fsync: bool = field(default=True, kw_only=True)
    """Whether publishing waits until the frame is on the disk."""

    # small chunks share one open and close, and the bytes are still in the processor's cache when
    # they are written: batches of 32 MiB take a quarter more processor time
    batch_nbytes = 1 << 20

    @property
    def target(self) -> str:
        """Path of the target."""
        return self.location.url

    @property
    def directory(self) -> Path:
        """The staging area."""
        return area_of(Path(self.target), self.key)

    def check_target(self) -> None:
        """Check that the target may be written or replaced."""
        path = Path(self.target)
        if path.exists():
            if not self.replace:
                raise FileExistsError(errno.EEXIST, EXISTS, self.target)
            # another writer may have removed it
            with suppress(FileNotFoundError):
                require_frame(path)

    def give_name(self, ready: Path) -> None:
        """Publish a finished file or directory under the name of the target."""
        # not atomic: a few microseconds pass between this check and the rename
        if self.replaces is not None and identity_at(self.target) != self.replaces:
            raise StaleFrameError("the frame was replaced meanwhile", path=self.target)
        if self.replace:
            # otherwise the rename checks the target
            self.check_target()
        publish_path(ready, Path(self.target), replace=self.replace, fsync=self.fsync)

    def make_area(self) -> None:
        """Make the staging area; see `Staging.make_area`."""
        with about(self.target):
            # it exists if a Delayed is computed twice
            self.directory.mkdir(exist_ok=True)
            (self.directory / LOCK_NAME).touch()

    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area; see `Staging.inside`."""
        return Location.of(self.directory / name)

    def exclusive(self) -> AbstractContextManager[None]:
        """Wait for tasks that append and for another run of the commit; see `Staging.exclusive`."""
        return self.locked()

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the staging area; do nothing if the file system has no locks."""
        # an exclusive lock on NFS needs a file that is open for writing
        with ExitStack() as held:
            with about(self.target):
                fd = held.enter_context(opened(self.directory / LOCK_NAME, os.O_RDWR))
                lock(fd, shared=shared, wait=True)
            # outside of `about`: errors of the caller's block may name other files
            yield

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Read staged bytes back; see `Staging.fetch`."""
        found = []
        for name, group in itertools.groupby(runs, key=lambda run: run.part):
            spans = [Span(run.start, run.stop) for run in group]
            try:
                found += LocalReader(str(self.directory / name)).read(spans)
            except FileNotFoundError:
                found += [b""] * len(spans)
        return found

    def put(self, name: str, payload: bytes, *, fsync: bool = True, only_new: bool = False) -> bool:
        """See `Staging.put`."""
        named = self._file(name)
        ready = named.with_name(uuid.uuid4().hex)
        # locked, since without hard links a new name appears before its bytes
        with self.locked() if only_new else nullcontext(), about(self.target):
            # made here, not with the area: a full disk would leave an incomplete area
            ready.parent.mkdir(exist_ok=True)
            write_file(ready, payload, fsync=fsync)
            if only_new:
                # unlike this link, a rename that keeps existing files is not atomic everywhere
                try:
                    link_or_copy(ready, named)
                except FileExistsError:
                    return False
                finally:
                    ready.unlink()
            else:
                ready.rename(named)
            if fsync:
                sync(ready.parent)
        return True

    def names(self) -> list[str]:
        """See `Staging.names`."""
        return [path.stem for path in (self.directory / _FOLDER).glob(f"*{FILE_SUFFIX}")]

    def get(self, name: str) -> bytes:
        """See `Staging.get`."""
        with about(self.target):
            return self._file(name).read_bytes()

    def _file(self, name: str) -> Path:
        return self.directory / _FOLDER / f"{name}{FILE_SUFFIX}"

    def sync(self, parts: Sequence[str]) -> None:
        """See `Staging.sync`."""
        with about(self.target):
            for part in parts:
                sync(self.directory / part)
            sync(self.directory)

    def discard(self) -> None:
        """Remove everything that was staged."""
        remove_area(self.directory, Path(self.target))


@dataclass(frozen=True)
class ContiguousStaging(LocalStaging):
    """A contiguous frame being written."""

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage chunks as one range in the part of this process; see `Staging.append`.

        A failure leaves a range of undefined bytes in the part, which nothing uses.
        """
        name, joined = f"{_process}.part", b"".join(payloads)
        with (
            about(self.target),
            # a commit must not take a part while it grows
            self.locked(shared=True),
            # opened and closed for each append: on NFS the close makes the bytes visible to others
            opened(self.directory / name, os.O_RDWR | os.O_CREAT) as fd,
            _reserve(fd, len(joined), self.header_len) as start,
        ):
            pwrite(fd, joined, start)
        return adjacent(name, payloads, start)

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Lay out all parts behind the largest, or behind a new one; see `Staging.join`.

        The largest part keeps its name until publication, and its chunks keep their offsets, so a
        repeated commit finds the same state.
        """
        used = np.bincount(rows["part"], rows["nbytes"], minlength=len(parts))
        with about(self.target):
            name, size = "", 0
            # without locks a duplicate task may still have a part open, and write into it after the
            # publication
            if len(used) and is_locked(self.directory / LOCK_NAME):
                name = parts[int(np.argmax(used))]
                size = (self.directory / name).stat().st_size
            if not name or size - self.header_len > used.max() * (1 + MAX_WASTE):
                name, size = f"{uuid.uuid4().hex}.part", 0
                (self.directory / name).touch(exist_ok=False)
            first = Run(name, 0, max(self.header_len, size))
            return lay_out(parts, rows, first, self.header_len)

    def append_all(self, fd: int, placement: Placement, tail: bytes) -> None:
        """Copy all runs behind the first one, then write the tail."""
        first, *others = placement.runs
        end = first.stop
        # remove bytes of a killed writer
        os.ftruncate(fd, end)
        for part, start, stop in others:
            with opened(self.directory / part, os.O_RDONLY) as source:
                copy_range(source, start, stop - start, fd, end)
            end += stop - start
        pwrite(fd, tail, end)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Complete the largest part, sync, rename; see `Staging.publish`."""
        ready = self.directory / placement.runs[0].part
        with about(self.target):
            # no O_CREAT: the area may have been removed, and may belong to another run by now
            with opened(ready, os.O_RDWR) as fd:
                self.append_all(fd, placement, tail)
                pwrite(fd, head, 0)
                # last, since a repeated commit must be able to write into the same part
                keep_mode(ready, Path(self.target))
                if self.fsync:
                    flush(fd)
            self.give_name(ready)


@dataclass(frozen=True)
class SparseStaging(LocalStaging):
    """A sparse frame being written, with one file per chunk."""

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage each chunk as a file; see `Staging.append`."""
        with about(self.target):
            runs = [Run(f"{uuid.uuid4().hex}.chunk", 0, len(payload)) for payload in payloads]
            for run, payload in zip(runs, payloads, strict=True):
                write_file(self.directory / run.part, payload, fsync=False)
            return runs

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Number the chunk files; see `Staging.join`."""
        # upstream does not open frames with gaps in the numbers (docs/format.md, Sparse directory)
        return number_chunks(parts, rows)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Make a directory, its index file last, sync, rename; see `Staging.publish`."""
        frame = self.directory / "frame"
        with about(self.target):
            # left by a killed commit
            remove_path(frame)
            frame.mkdir()
            with (
                opened(frame, os.O_RDONLY | os.O_DIRECTORY) as folder,
                self.linked(placement, folder, fsync=self.fsync),
            ):
                write_file(frame / MAIN_MEMBER, head + tail, fsync=self.fsync)
                keep_mode(frame, Path(self.target))
                keep_mode(frame / MAIN_MEMBER, Path(self.target, MAIN_MEMBER))
                if self.fsync:
                    flush(folder)
            self.give_name(frame)

    @contextmanager
    def linked(self, placement: Placement, folder: int, *, fsync: bool) -> Iterator[None]:
        """Link all staged chunk files into a directory; remove the links if the block fails."""
        linked: list[str] = []
        try:
            for number, run in zip(placement.positions.tolist(), placement.runs, strict=True):
                name = chunk_member(number)
                # not moved: a repeated commit needs the file under its staged name
                link_or_copy(self.directory / run.part, name, folder)
                linked.append(name)
                if fsync:
                    sync(name, folder)
            yield
        except BaseException:
            # no index refers to them
            for name in linked:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
            raise


@contextmanager
def _reserve(fd: int, nbytes: int, header_len: int) -> Iterator[int]:
    """Reserve a range behind all others for this thread; yield its start."""
    with _reserving:
        state = os.fstat(fd)
        part = state.st_dev, state.st_ino
        start = max(state.st_size, header_len, *(end for of, end in _unfinished if of == part))
        _unfinished.append((part, start + nbytes))
    try:
        yield start
    finally:
        with _reserving:
            _unfinished.remove((part, start + nbytes))
