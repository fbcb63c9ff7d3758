"""The cache of opened frames of this process, which its tasks share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing, suppress

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.frame.open.embedded import open_reader
from b2nd_dask.frame.open.opening import NOT_SHARED, OUTDATED, OpenedFrame, ParsedFrame, parse_frame
from b2nd_dask.processes import here, unseen
from b2nd_dask.storage import Location
from b2nd_dask.system import at_fork

#: Each local frame holds a file descriptor; a process may often have only 1,024.
MAX_OPEN_FRAMES = 64
#: Attempts to open a frame that is replaced meanwhile.
TRIES = 5


class FrameCache:
    """The most recently used frames, one version for each location. One cache per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: OrderedDict[str, OpenedFrame] = OrderedDict()

    def open(
        self, location: Location, version: str | None = None, parsed: ParsedFrame | None = None
    ) -> OpenedFrame:
        """Open a version of a frame, or return the one that is already open.

        Without `version` it is the current one; `parsed` is metadata of this version, to avoid
        reading it again. Raises `StaleFrameError` if the frame has another version now.
        """
        if version is not None and (known := self.known(location, version)):
            return known
        opened = _open(location) if version is None else _open_again(location, parsed)
        if version not in (None, opened.parsed.version):
            raise StaleFrameError(
                f"{OUTDATED} (seen from {here()}, which may see another file at this path)",
                path=location.label,
            )
        with self._lock:
            # threads may open a frame at the same time; each reads with its own, later ones share
            self._frames[location.key] = opened
            self._frames.move_to_end(location.key)
            while len(self._frames) > MAX_OPEN_FRAMES:
                # a reader in use outlives the cache entry and closes its file at its end
                self._frames.popitem(last=False)
        return opened

    def current(self, location: Location) -> OpenedFrame:
        """Open the current frame; if an open one is still current, it is not parsed again."""
        known = self._frames.get(location.key)
        if known is None or not known.parsed.changes_show:
            return self.open(location)
        # a file that became a directory, or the reverse, has no identity of the old kind
        with (
            suppress(StaleFrameError, FileNotFoundError, NotADirectoryError),
            # a network file system may answer `stat` from its cache, but not `open`
            closing(open_reader(location)) as reader,
        ):
            now = reader.opened_identity()
            # a copy that preserves times may have size and times of the frame that it overwrites
            if now.is_untouched(known.parsed.identity) and known.is_held():
                return known
        return self.open(location)

    def present(self, location: Location) -> OpenedFrame:
        """As `current`, by size and times alone, which every update by this package changes."""
        known = self._frames.get(location.key)
        # a file that became a directory, or the reverse, has no identity of the old kind
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
        return found if found.is_held() else None


def _open_again(location: Location, parsed: ParsedFrame | None) -> OpenedFrame:
    """Open a frame that was opened before, perhaps by a client on another host."""
    try:
        return (parsed and _reopened(location, parsed)) or _open(location)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if location.is_url:
            raise
        raise unseen(error, location.label, NOT_SHARED) from None


def _open(location: Location) -> OpenedFrame:
    for _ in range(TRIES):
        reader = open_reader(location)
        try:
            return OpenedFrame(reader, parse_frame(reader))
        except FileNotFoundError:
            # the replacement of a sparse frame between two calls empties its directory
            if not reader.is_directory:
                raise
    raise StaleFrameError("it is replaced again and again while it is opened", path=location.label)


def _reopened(location: Location, parsed: ParsedFrame) -> OpenedFrame | None:
    """Open a frame with known metadata; None if the frame may have changed."""
    reader = open_reader(location)
    # the identity in a store may be weaker than the metadata
    if reader.identity_is_cheap:
        with suppress(FileNotFoundError):  # a sparse frame that is replaced is emptied
            if reader.opened_identity().is_untouched(parsed.identity):
                return OpenedFrame(reader, parsed)
    reader.close()
    return None


_cache = FrameCache()


def process_cache() -> FrameCache:
    """Return the cache of this process."""
    return _cache


def _reset() -> None:
    """Start an empty cache in a forked child: locks and connections belong to the parent."""
    global _cache
    _cache = FrameCache()


at_fork(after_in_child=_reset)
