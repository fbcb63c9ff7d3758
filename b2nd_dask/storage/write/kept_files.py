"""Small named files in a staging area: the plan of a frame that was begun, and manifests.

Unlike what tasks append, each is there whole or not at all; also after a power cut, where the
caller waits for the disk.
"""

from __future__ import annotations

import fcntl
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from b2nd_dask.storage.write.durable import sync
from b2nd_dask.storage.write.local_files import about, link_or_copy, locked, write_file
from b2nd_dask.storage.write.local_names import LOCK_NAME
from b2nd_dask.storage.write.object_store import StagingArea

_SUFFIX = ".kept"
#: Folder of local ones: found without a list of all chunk files.
_FOLDER = "kept"


class KeptFiles(Protocol):
    """The files of one staging area; names are letters, digits and hyphens."""

    def put(self, name: str, payload: bytes, *, fsync: bool = True) -> None:
        """Put a file, instead of one of that name.

        Parameters
        ----------
        fsync : bool
            Whether it outlives a power cut; without, what is read after one may be cut short.

        Raises
        ------
        FileNotFoundError
            The staging area is gone.
        """

    def put_new(self, name: str, payload: bytes) -> bool:
        """As `put`; false, and nothing is changed, where there is one of that name."""

    def names(self) -> list[str]:
        """Names of all; none where there is no area."""

    def read(self, name: str) -> bytes:
        """Read a file; FileNotFoundError where there is none."""


@dataclass(frozen=True, slots=True)
class LocalKeptFiles:
    """Files on a local disk."""

    area: Path
    """Directory of the staging area."""
    target: str
    """Path of the frame, for messages."""

    def put(self, name: str, payload: bytes, *, fsync: bool = True) -> None:
        """See `KeptFiles.put`."""
        with about(self.target):
            ready = self._ready(payload, fsync=fsync)
            ready.rename(self._path(name))
            if fsync:
                sync(ready.parent)

    def put_new(self, name: str, payload: bytes) -> bool:
        """See `KeptFiles.put_new`."""
        # the lock is for file systems without hard links, where a name appears before its bytes
        with locked(self.area / LOCK_NAME, fcntl.LOCK_EX, self.target), about(self.target):
            ready = self._ready(payload)
            try:
                link_or_copy(ready, self._path(name))
            except FileExistsError:
                return False
            finally:
                ready.unlink()
            sync(ready.parent)
        return True

    def names(self) -> list[str]:
        """See `KeptFiles.names`."""
        return [path.stem for path in (self.area / _FOLDER).glob(f"*{_SUFFIX}")]

    def read(self, name: str) -> bytes:
        """See `KeptFiles.read`."""
        with about(self.target):
            return self._path(name).read_bytes()

    def _path(self, name: str) -> Path:
        return self.area / _FOLDER / f"{name}{_SUFFIX}"

    def _ready(self, payload: bytes, *, fsync: bool = True) -> Path:
        """A file without a name of its own yet, which nobody can know before."""
        ready = self.area / _FOLDER / uuid.uuid4().hex
        try:
            write_file(ready, payload, fsync=fsync)
        except FileNotFoundError:
            ready.parent.mkdir(exist_ok=True)
            write_file(ready, payload, fsync=fsync)
        return ready


@dataclass(frozen=True, slots=True)
class ObjectKeptFiles:
    """Objects in an fsspec store."""

    area: StagingArea

    def put(self, name: str, payload: bytes, *, fsync: bool = True) -> None:
        """See `KeptFiles.put`; an object that was put is there."""
        self.area.put(f"{name}{_SUFFIX}", payload)

    def put_new(self, name: str, payload: bytes) -> bool:
        """See `KeptFiles.put_new`; of two at once, a store that cannot tell keeps the later."""
        return name not in self.names() and self.area.put_new(f"{name}{_SUFFIX}", payload)

    def names(self) -> list[str]:
        """See `KeptFiles.names`."""
        found = self.area.names()
        return [name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)]

    def read(self, name: str) -> bytes:
        """See `KeptFiles.read`."""
        return self.area.store.get(self.area.path(f"{name}{_SUFFIX}"))
