"""Contiguous and sparse frames written to a local (or shared) file system.

Every process appends to a part file of its own in a hidden directory beside the target, so no two
processes ever lock or share a file. The parts of a contiguous frame begin with room for the header:
the largest part becomes the frame, and only what other processes staged is copied, inside the
kernel.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from b2nd_dask.storage.base import MAIN_MEMBER
from b2nd_dask.storage.rename import publish_path, remove_path, sync_directory
from b2nd_dask.storage.staging import Joined, Run, StagedChunks, in_order, runs_of

#: A part with more unused bytes than this share, left by tasks that ran twice, is copied rather
#: than kept.
MAX_WASTE = 1 / 8
#: What copy_file_range answers between file systems, or on one that lacks it.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_COPY_NBYTES = 1 << 24
#: Spares small chunks most of the opening and closing, and large ones are still in the processor's
#: cache when they are written: with 32 MiB those would take a quarter more processor time.
_BATCH_NBYTES = 1 << 20
_CHUNK_FILE = re.compile(r"[0-9A-F]{8}\.chunk")
#: Buffers that one call of the system takes.
_IOV_MAX = os.sysconf("SC_IOV_MAX")

_creating = threading.Lock()
#: Of this process alone: process ids and even host names repeat among containers.
_process = uuid.uuid4().hex


def _start_anew() -> None:
    global _creating, _process
    _creating, _process = threading.Lock(), uuid.uuid4().hex


os.register_at_fork(after_in_child=_start_anew)


@dataclass(frozen=True, slots=True)
class _LocalStaging:
    """What contiguous and sparse frames have in common."""

    target: str
    """Absolute path, symlinks resolved: a link to a frame stays a link."""
    replace: bool
    """Whether a frame that is there may be replaced."""
    key: str
    """Tells the staging areas of one target apart."""

    @property
    def label(self) -> str:
        """Path of the target."""
        return self.target

    @property
    def batch_nbytes(self) -> int:
        """See `Staging.batch_nbytes`."""
        return _BATCH_NBYTES

    @property
    def directory(self) -> Path:
        """The staging area."""
        path = Path(self.target)
        # cut: names end at 255 bytes
        return path.with_name(f".{path.name[:50]}.{self.key}.staging")

    def check_target(self) -> None:
        """Refuse to write over what must not be replaced."""
        path = Path(self.target)
        if path.exists():
            if not self.replace:
                message = 'something is there already; pass mode="w" to replace it'
                raise FileExistsError(errno.EEXIST, message, self.target)
            _require_frame(path)

    def prepare(self) -> None:
        """Look at the target and make the staging area; see `Staging.prepare`."""
        self.check_target()
        with about(self.target):
            # a Delayed may be computed twice
            self.directory.mkdir(exist_ok=True)

    def discard(self) -> None:
        """Remove everything that was staged."""
        # under another name first: tasks that still run must not find it while it is emptied
        dead = self.directory.with_suffix(".removed")
        with suppress(FileNotFoundError):
            self.directory.rename(dead)
        remove_path(dead)


@dataclass(frozen=True, slots=True)
class ContiguousStaging(_LocalStaging):
    """A contiguous frame being written."""

    header_len: int
    """Bytes that every part leaves free at its start."""

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage chunks in one piece; see `Staging.append`."""
        name = f"{_process}.part"
        runs = []
        with about(self.target), self._part(name) as fd:
            for first in range(0, len(payloads), _IOV_MAX):
                batch = payloads[first : first + _IOV_MAX]
                start = _append(fd, batch)
                for payload in batch:
                    runs.append(Run(name, start, start + len(payload)))
                    start += len(payload)
        return runs

    @contextmanager
    def _part(self, name: str) -> Iterator[int]:
        # opened and closed for each append: closing makes the bytes visible to other machines on
        # NFS
        path = self.directory / name
        with _creating:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            if os.fstat(fd).st_size == 0:
                os.ftruncate(fd, self.header_len)
        try:
            yield fd
        finally:
            os.close(fd)

    def join(self, chunks: StagedChunks) -> Joined:
        """Copy all parts to the end of the largest; see `Staging.join`."""
        ordered, order = in_order(chunks)
        used = np.bincount(ordered.part, ordered.nbytes, minlength=len(ordered.parts))
        base = self._base(ordered.parts, used)
        positions = np.empty(len(order), np.int64)
        fd = os.open(self.directory / "frame", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            end = max(os.fstat(fd).st_size, self.header_len)
            for part, members in runs_of(ordered):
                start = int(ordered.start[members.start])
                shift = 0
                if part != base:
                    nbytes = int(ordered.nbytes[members].sum())
                    self.copy_part(ordered.parts[part], start, nbytes, fd, end)
                    shift = end - start
                    end += nbytes
                positions[order[members]] = ordered.start[members] + shift - self.header_len
        finally:
            os.close(fd)
        return Joined(positions, end - self.header_len)

    def _base(self, parts: tuple[str, ...], used: np.ndarray) -> int:
        """Make the part that becomes the frame; -1 where a new file does."""
        if not len(used):
            return -1
        base = int(np.argmax(used))
        path = self.directory / parts[base]
        if path.stat().st_size - self.header_len > used[base] * (1 + MAX_WASTE):
            return -1
        path.rename(self.directory / "frame")
        return base

    def copy_part(self, part: str, start: int, nbytes: int, target: int, at: int) -> None:
        """Copy staged bytes into another file."""
        source = os.open(self.directory / part, os.O_RDONLY)
        try:
            copy_range(source, start, nbytes, target, at)
        finally:
            os.close(source)

    def publish(self, joined: Joined, head: bytes, tail: bytes) -> None:
        """Write header and tail, sync, rename; see `Staging.publish`."""
        self.check_target()
        ready, target = self.directory / "frame", Path(self.target)
        fd = os.open(ready, os.O_RDWR)
        try:
            if target.is_file():
                os.fchmod(fd, stat.S_IMODE(target.stat().st_mode))
            end = self.header_len + joined.data_nbytes
            os.ftruncate(fd, end)
            pwrite(fd, tail, end)
            pwrite(fd, head, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        publish_path(ready, target, replace=self.replace)
        self.discard()


@dataclass(frozen=True, slots=True)
class SparseStaging(_LocalStaging):
    """A sparse frame being written: each chunk a file."""

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage each chunk as a file; see `Staging.append`."""
        return [self._append_one(payload) for payload in payloads]

    def _append_one(self, payload: bytes) -> Run:
        name = f"{uuid.uuid4().hex}.chunk"
        fd = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            pwrite(fd, payload, 0)
        finally:
            os.close(fd)
        return Run(name, 0, len(payload))

    def join(self, chunks: StagedChunks) -> Joined:
        """Number the chunk files; see `Staging.join`."""
        frame = self.directory / "frame"
        frame.mkdir()
        for number, part in enumerate(chunks.part.tolist()):
            # upstream does not open frames whose numbers have gaps (REFERENCE 3.1)
            (self.directory / chunks.parts[part]).rename(frame / f"{number:08X}.chunk")
        return Joined(np.arange(len(chunks.part)), int(chunks.nbytes.sum()))

    def publish(self, joined: Joined, head: bytes, tail: bytes) -> None:
        """Write the index file last, sync, rename; see `Staging.publish`."""
        self.check_target()
        frame = self.directory / "frame"
        for member in frame.iterdir():
            sync_file(member)
        fd = os.open(frame / MAIN_MEMBER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            pwrite(fd, head + tail, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(frame)
        publish_path(frame, Path(self.target), replace=self.replace)
        self.discard()


@contextmanager
def about(target: str) -> Iterator[None]:
    """Name the target in errors of the system, which name hidden files or none."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"{error.strerror}, while writing", target) from error


def is_frame_member(name: str) -> bool:
    """Whether a directory entry has a name of a sparse frame's; .b2lock is python-blosc2's."""
    return name in (MAIN_MEMBER, ".b2lock") or _CHUNK_FILE.fullmatch(name) is not None


def _require_frame(path: Path) -> None:
    """Refuse to replace what is neither a frame nor empty."""
    if path.is_dir():
        names = [member.name for member in path.iterdir()]
        frame = not names or (MAIN_MEMBER in names and all(map(is_frame_member, names)))
    else:
        with path.open("rb") as file:
            # 0x9e, 0xa8 and the magic begin every frame (REFERENCE 1)
            frame = file.read(10)[2:] in (b"b2frame\0", b"")
    if not frame:
        message = "not a frame, or a directory with other things in it: not replaced"
        raise FileExistsError(errno.EEXIST, message, str(path))


def _append(fd: int, payloads: Sequence[bytes]) -> int:
    """Append in one piece; returns where it starts.

    A write that the system cuts short (a full disk says so at the next one) is begun anew behind
    its remains: another thread may have appended meanwhile.
    """
    nbytes = sum(map(len, payloads))
    while True:
        written = os.writev(fd, payloads)
        # with O_APPEND the position is behind what this descriptor wrote
        end = os.lseek(fd, 0, os.SEEK_CUR)
        if written == nbytes:
            return end - written


def pwrite(fd: int, payload: bytes, at: int) -> None:
    """Write all of the bytes at a position."""
    view = memoryview(payload)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _kernel_copy(source: int, target: int, nbytes: int, start: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.copy_file_range(source, target, nbytes, start, at)


def copy_range(source: int, start: int, nbytes: int, target: int, at: int) -> None:
    """Copy bytes between files, inside the kernel where it can."""
    while nbytes:
        try:
            copied = _kernel_copy(source, target, nbytes, start, at)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            payload = os.pread(source, min(nbytes, _COPY_NBYTES), start)
            pwrite(target, payload, at)
            copied = len(payload)
        if copied == 0:
            raise OSError(errno.EIO, "a staged part is shorter than its records say")
        start, at, nbytes = start + copied, at + copied, nbytes - copied


def sync_file(path: Path) -> None:
    """Wait until a file is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
