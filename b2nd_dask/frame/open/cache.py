"""`OpenedFrame`, and the cache of opened frames that the tasks of this process share."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, ChecksumError, StaleFrameError, level_of_caller
from b2nd_dask.format.integrity import IF_RIGHT, ChecksumState
from b2nd_dask.frame.open.embedded import open_reader
from b2nd_dask.frame.open.opening import ParsedFrame, parse_frame
from b2nd_dask.processes import here, unseen
from b2nd_dask.storage import ByteReader, Location, chunk_member
from b2nd_dask.system import at_fork

#: Text of StaleFrameError for a frame that changed since it was opened.
OUTDATED = (
    "the frame changed after it was opened or after the graph was built: open it again by "
    "from_b2nd, open_b2nd or open_dataset, and build the graph again"
)
#: Text of FileNotFoundError for a frame that existed when it was opened.
NOT_SHARED = (
    "the frame existed when it was opened; if it was not removed since then, make it available to "
    "this process under the same path (a shared file system, a mounted volume), or use a URL"
)

#: Each local frame holds a file descriptor; a process may often have only 1,024.
MAX_OPEN_FRAMES = 64
#: Attempts to open a frame that is replaced meanwhile.
TRIES = 5

#: Which chunks are verified: with "auto" those that are read whole or by their witness
#: (`frame.read.plan`), with True every chunk that is read, with False none.
Verify = bool | Literal["auto"]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class OpenedFrame:
    """A reader and the metadata that was parsed with it."""

    reader: ByteReader
    parsed: ParsedFrame
    verify: Verify = "auto"
    """Which chunks to verify by their checksums before decoding."""
    _checked_ctimes: set[int] = field(default_factory=set)
    """Later ctimes at which the file was parsed again with the same version."""

    @property
    def digests(self) -> NDArray[np.uint64] | None:
        """Digests for chunks that are read whole; None if nothing is to be verified."""
        return self.parsed.columns.digests if self.verify else None

    def is_current(self) -> bool:
        """Whether the location still has the parsed frame, and the reader can read it.

        Raises `FileNotFoundError` or `PermissionError` if a local frame's path does not exist or is
        inaccessible in this process.
        """
        try:
            now, parsed = self.reader.identity(), self.parsed.identity
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if not self.reader.identity_is_cheap:
                raise
            raise unseen(error, self.reader.label, NOT_SHARED) from None
        if now != parsed or not self.is_held():
            return False
        if not now.is_untouched(parsed) and now.changed not in self._checked_ctimes:
            if parse_frame(self.reader).version != self.parsed.version:
                return False
            self._checked_ctimes.add(now.changed)
        return True

    def is_held(self) -> bool:
        """Whether the open frame still has its files; checks only local directories.

        An open directory does not protect its files from removal. Then a copy may get the same
        inodes and, with the same times, the same identity. An additional open file would prevent
        this, but on NFS the directory could not be removed then.
        """
        if not (self.reader.is_directory and self.reader.identity_is_cheap):
            return True
        try:
            self.reader.opened_identity()
        except OSError:  # also ESTALE, for files that another host has removed
            return False
        return True

    def require_current(self) -> None:
        """Raise StaleFrameError unless the location holds this frame; errors as of `is_current`."""
        if not self.is_current():
            raise StaleFrameError(OUTDATED, path=self.reader.label)

    def require_descendant(self, token: bytes) -> None:
        """Check that only updates by this package led to this state from the one with a token.

        Raises StaleFrameError if the frame was replaced, other software changed it, or the history
        is too short.
        """
        if self.parsed.updates_since(token) is None:
            raise StaleFrameError(OUTDATED, path=self.reader.label)

    def require_checksums(self) -> None:
        """Check that the state of the checksums fits the user's `verify`.

        Raises `ChecksumError` if the metadata is damaged, or required checksums are absent.
        """
        checksums, label = self.parsed.columns.checksums, self.reader.label
        if checksums.state is ChecksumState.DAMAGED and self.verify:
            raise ChecksumError(
                f"the frame is damaged: {checksums.reason}; Python reads it by verify=False",
                path=label,
            )
        if not checksums.is_valid and self.verify is True:
            raise ChecksumError(
                f"the frame has no valid checksums: {checksums.reason}; add them by "
                'b2nd_dask.seal (reads by verify="auto" do without)',
                path=label,
            )

    def warn_if_stale(self) -> None:
        """Warn of stale checksums (other software or damage), but not with verify=False."""
        checksums = self.parsed.columns.checksums
        if checksums.state is not ChecksumState.STALE or not self.verify:
            return
        warnings.warn(
            f"{self.reader.label}: {checksums.reason}. {IF_RIGHT}; verify=True rejects "
            "such a frame, verify=False omits this warning",
            UserWarning,
            stacklevel=level_of_caller(),
        )


@contextmanager
def located(opened: OpenedFrame, chunk: int) -> Iterator[None]:
    """Add a stored chunk, its file and its position to errors."""
    try:
        yield
    except B2ndError as error:
        frame, label = opened.parsed, opened.reader.label
        offset = int(frame.index.offsets[chunk])
        if frame.header.sparse:
            error.located(chunk=chunk, path=f"{label}/{chunk_member(offset)}")
        else:
            error.located(chunk=chunk, path=label, shift=frame.header.header_len + offset)
        raise


class FrameCache:
    """The most recently used frames, one version for each location."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all frames; no other thread may use the cache. Readers in use stay open."""
        self._lock = threading.Lock()
        self._frames: OrderedDict[str, OpenedFrame] = OrderedDict()

    def open(
        self, location: Location, version: str | None = None, parsed: ParsedFrame | None = None
    ) -> OpenedFrame:
        """Open a version of a frame, or return the one that is already open.

        Without `version` it is the current one; `parsed` is known metadata, which is read again
        only if the frame may have changed. Raises `StaleFrameError` if the frame has another
        version now.
        """
        if version is not None and (known := self.known(location, version)):
            return known
        try:
            opened = _open(location, parsed)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            # another process, perhaps on another host, has opened the frame
            if version is None or location.is_url:
                raise
            raise unseen(error, location.label, NOT_SHARED) from None
        if version not in (None, opened.parsed.version):
            raise StaleFrameError(
                f"{OUTDATED} (seen from {here()}, which may see another file at this path)",
                path=location.label,
            )
        with self._lock:
            # threads that open a frame at the same time keep their own; later reads share the last
            self._frames[location.key] = opened
            self._frames.move_to_end(location.key)
            while len(self._frames) > MAX_OPEN_FRAMES:
                # a reader in use stays open after the removal of its entry
                self._frames.popitem(last=False)
        return opened

    def current(self, location: Location) -> OpenedFrame:
        """Open the current frame; do not parse metadata again that is known and current."""
        known = self._frames.get(location.key)
        # a copy that preserves times may overwrite a frame without changing size and times
        is_known = known is not None and known.parsed.changes_show and known.is_held()
        # a network file system may answer `stat` from its cache, but not `open`
        return self.open(location, parsed=known.parsed if known and is_known else None)

    def present(self, location: Location) -> OpenedFrame:
        """Like `current`, by size and times alone, which each update of this package changes."""
        known = self._frames.get(location.key)
        # errors of a file that became a directory, or the reverse
        with suppress(StaleFrameError, FileNotFoundError, NotADirectoryError):
            if known is not None and known.is_current():
                return known
        return self.open(location)

    def known(self, location: Location, version: str) -> OpenedFrame | None:
        """Return a version of a frame if it is already open, else None."""
        key = location.key
        with self._lock:
            found = self._frames.get(key)
            if found is None or found.parsed.version != version:
                return None
            self._frames.move_to_end(key)
        if found.is_held():
            return found
        with self._lock:
            # an open reader would keep the space of removed files
            if self._frames.get(key) is found:
                del self._frames[key]
        return None


def _open(location: Location, parsed: ParsedFrame | None) -> OpenedFrame:
    for _ in range(TRIES):
        reader = open_reader(location)
        try:
            if (
                parsed is not None
                # the identity in a store may be weaker than the metadata
                and reader.identity_is_cheap
                and reader.opened_identity().is_untouched(parsed.identity)
            ):
                return OpenedFrame(reader, parsed)
            return OpenedFrame(reader, parse_frame(reader))
        except FileNotFoundError:
            # another write has replaced the sparse frame, and is emptying its directory
            if not reader.is_directory:
                raise
    raise StaleFrameError("it is replaced again and again while it is opened", path=location.label)


#: The cache of this process.
process_cache = FrameCache()
# locks and connections belong to the parent
at_fork(after_in_child=process_cache.clear)
