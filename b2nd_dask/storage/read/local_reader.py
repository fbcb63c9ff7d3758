"""Local files, and the directories of sparse frames."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import weakref
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from b2nd_dask.errors import FrameFormatError, StaleFrameError
from b2nd_dask.storage.byte_reader import MAIN_MEMBER, ByteReader, Identity, Span, clip
from b2nd_dask.storage.failures import what_directory, why_missing
from b2nd_dask.system import NO_FD, open_to_read, pread, pread_into

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

_CLOCK_STEP_NS = 2 * 10**9


class LocalReader(ByteReader):
    """Read byte ranges of a local file, or of the members of a local directory.

    A file stays open: reads see the opened file, even if another one has replaced it at the path.
    `identity` is that of the file now at the path. Members of a directory are opened for each call,
    since a process cannot open all of them at once.

    The path may be a symlink; members of a directory may not. Raises FileNotFoundError if the path
    does not exist, `FrameFormatError` for a directory that is not a sparse frame, and for fifos,
    devices and sockets.
    """

    fills_buffers = True

    def __init__(self, path: str) -> None:
        self.label = path
        handle, self._is_directory = _open_frame(path)
        self._handle: _Handle | None = handle
        self._main = Path(path, MAIN_MEMBER) if self.is_directory else Path(path)

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame."""
        return self._is_directory

    def identity(self) -> Identity:
        """Size, mtime, inode and ctime of the file that the path names now."""
        try:
            return identity_of(self._main.stat(follow_symlinks=not self.is_directory))
        except NotADirectoryError:
            raise StaleFrameError(
                "the frame was a directory when it was opened and is a file now; open it again",
                path=self.label,
            ) from None

    def opened_identity(self) -> Identity:
        """Size, mtime, inode and ctime of the open file, whatever the path names now."""
        handle = self._held()
        if self.is_directory:
            # one system call, since every read of a sparse frame needs it
            return identity_of(handle.stat(MAIN_MEMBER))
        return identity_of(os.fstat(handle.fd))

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges; see `ByteReader.read`."""
        with self._opened(member) as fd:
            size = os.fstat(fd).st_size
            return [_read(fd, clip(span, size)) for span in spans]

    def read_each(
        self, items: Sequence[tuple[str, Span]], buffers: Sequence[memoryview]
    ) -> Generator[tuple[memoryview, int]]:
        """Read byte ranges into buffers; see `ByteReader.read_each`."""
        rows = zip(items, buffers, strict=True)
        # a chunk file with several spans in a row is opened once
        for member, group in itertools.groupby(rows, key=lambda row: row[0][0]):
            with self._opened(member) as fd:
                size = os.fstat(fd).st_size
                found = [buffer[: _fill(fd, span.start, buffer)] for (_, span), buffer in group]
            # outside of the block: no file stays open while the caller processes the bytes
            yield from ((data, size) for data in found)

    def close(self) -> None:
        """Close the file when the running reads have finished."""
        self._handle = None

    @contextmanager
    def _opened(self, member: str) -> Iterator[int]:
        handle = self._held()
        if not self.is_directory:
            self.require_no_member(member)
            yield handle.fd
            return
        name = member or MAIN_MEMBER
        if name in (".", "..") or not {"/", os.sep, "\0"}.isdisjoint(name):
            raise FrameFormatError(f"{name!r} is not the name of a member", path=self.label)
        label = f"{self.label}/{name}"
        # relative to the open directory; a link could lead out of it
        fd = _open(label, handle.arguments(name), follow=False)
        try:
            _require_regular(os.fstat(fd), label)
            yield fd
        finally:
            os.close(fd)

    def _held(self) -> _Handle:
        handle = self._handle  # keeps the descriptor open if another thread closes the reader
        if handle is None:
            raise ValueError(f"{self.label}: the reader is closed")
        return handle


def identity_of(state: os.stat_result) -> Identity:
    """Identity of a file, from its `stat`.

    It omits the device number, in which hosts of a shared file system differ.
    """
    return Identity(state.st_size, f"{state.st_mtime_ns}-{state.st_ino}", state.st_ctime_ns)


def is_same_file(one: Identity, other: Identity) -> bool:
    """Whether two identities belong to one file, which may have changed in between."""
    return one.token.split("-")[1:] == other.token.split("-")[1:]


def changes_show(identity: Identity, moment_ns: int) -> bool:
    """Whether every change of a local object after a moment changes its identity.

    File system clocks have steps of up to two seconds: a file that changed within this time before
    the moment may change again without a new time. The ctime counts, too, since the mtime may have
    been set back.
    """
    # in a store the token of a member starts with the store's size; that of bytes is a digest
    *_, written, _ = ("0", *identity.token.split("-"))
    return max(int(written), identity.changed) + _CLOCK_STEP_NS < moment_ns


def identity_at(path: str) -> Identity:
    """Identity of the frame that a path names now."""
    with closing(LocalReader(path)) as reader:
        return reader.identity()


class _Handle:
    """An open file or directory, closed with its last reference.

    After an earlier close, a read in another thread could use the same descriptor of another file.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, _open(path, {"path": path})
        if self.fd != NO_FD:
            weakref.finalize(self, _close, self.fd)

    def state(self) -> os.stat_result:
        """Return the `stat` of the open file or directory."""
        return os.fstat(self.fd) if self.fd != NO_FD else Path(self.path).stat()

    def arguments(self, name: str) -> dict[str, Any]:
        """Arguments of system calls for a file in the open directory."""
        if self.fd == NO_FD:
            return {"path": f"{self.path}/{name}"}
        return {"path": name, "dir_fd": self.fd}

    def stat(self, name: str) -> os.stat_result:
        """Return the `stat` of a file in the directory."""
        return os.stat(**self.arguments(name), follow_symlinks=False)

    def names(self) -> set[str]:
        """Names of the files in the directory."""
        with os.scandir(self.path if self.fd == NO_FD else self.fd) as entries:
            return {entry.name for entry in entries}


def _open_frame(path: str) -> tuple[_Handle, bool]:
    """Open the frame at a path; also return whether it is a directory.

    The descriptor decides this, since the path may name a frame of the other form a moment later.
    """
    while True:
        handle = _Handle(path)
        state = handle.state()
        if not stat.S_ISDIR(state.st_mode):
            _require_regular(state, path)
            return handle, False
        with suppress(FileNotFoundError):
            handle.stat(MAIN_MEMBER)
            return handle, True
        # a replaced frame is emptied: retry, unless the path still names this directory
        if os.path.samestat(Path(path).stat(), state):
            guess = what_directory(path, handle.names())
            raise FrameFormatError(
                f"a directory without a file {MAIN_MEMBER} is not a sparse frame{guess}", path=path
            )


def _open(label: str, arguments: dict[str, Any], *, follow: bool = True) -> int:
    try:
        return open_to_read(**arguments, follow=follow)
    except FileNotFoundError:
        problem = os.strerror(errno.ENOENT) + why_missing(label)
        raise FileNotFoundError(errno.ENOENT, problem, label) from None
    except OSError as error:
        # a symlink that is not followed, or a socket
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            reason = why_missing(label) if error.errno == errno.ENOTDIR else ""
            raise type(error)(error.errno, f"{error.strerror}{reason}", label) from error
        raise _not_regular(label) from None


def _require_regular(state: os.stat_result, label: str) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise _not_regular(label)


def _not_regular(label: str) -> FrameFormatError:
    return FrameFormatError(
        "not a regular file; a frame is a regular file, or a directory of regular files", path=label
    )


def _close(fd: int) -> None:
    # no caller can handle the error; a daemon may have closed all its descriptors
    with suppress(OSError):
        os.close(fd)


def _read(fd: int, span: Span) -> bytes:
    # one call may read less than the span, and never reads more than 2 GiB
    parts = []
    at = span.start
    while at < span.stop and (part := pread(fd, span.stop - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _fill(fd: int, start: int, target: memoryview) -> int:
    done = 0
    while done < len(target) and (count := pread_into(fd, target[done:], start + done)):
        done += count
    return done
