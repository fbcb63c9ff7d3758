"""What writing needs of an object store: whole objects put, fetched by ranges, copied, removed.

And the folder beside a target in which objects are staged.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.core import has_magic

from b2nd_dask.storage.failures import NO_BUCKET, only_here
from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.write.staging import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

#: Requests under way at the same time. Copies and removals cost the store, not the client.
CONCURRENCY = 16
#: Bytes of one piece of what passes through the client; about one is in memory at a time.
PIECE_NBYTES = 16 << 20
#: Lies in the area for as long as anything may be staged there.
_OPEN = "open"

#: Folders of staging areas that this process has opened and will clear, and its number: a process
#: that is forked off is another one.
_owned: dict[str, int] = {}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ObjectStore(Connection):
    """The file system of a target, for this process. Its errors hold no secrets."""

    @property
    def target(self) -> str:
        """Path of the target."""
        return self.path.rstrip("/")

    @property
    def has_folders(self) -> bool:
        """Whether folders may be more than parts of names. fsspec's object stores are async."""
        return not isinstance(self.fs, AsyncFileSystem)

    def kind(self, path: str) -> str | None:
        """Return "file", "directory" or, where there is nothing, None."""
        try:
            return str(self._fresh(lambda: self.fs.info(path))["type"])
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Names of the objects below a folder; none where there is no folder."""
        return [path[path.index(folder) + len(folder) + 1 :] for path in self.sizes(folder)]

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of the objects below a folder, by their paths."""
        try:
            found = self._fresh(lambda: self.fs.find(folder, detail=True))
        except FileNotFoundError:
            return {}
        return {path: entry["size"] or 0 for path, entry in found.items()}

    def folders(self, parent: str) -> list[str]:
        """Paths of the folders in a folder; none where it is not there.

        Raises
        ------
        FileNotFoundError
            There is no such bucket.
        """
        try:
            found = self._fresh(lambda: self.fs.ls(parent, detail=True))
        except FileNotFoundError as error:
            if error.strerror == NO_BUCKET:
                raise
            return []
        return [entry["name"].rstrip("/") for entry in found if entry["type"] == "directory"]

    def usage(self, folder: str) -> tuple[int, datetime | None]:
        """Bytes of the objects below a folder; the newest time of change, if the store has any."""
        found = self._fresh(lambda: self.fs.find(folder, detail=True)).values()
        times = [entry["LastModified"] for entry in found if "LastModified" in entry]
        return sum(entry["size"] or 0 for entry in found), max(times, default=None)

    def make_folder(self, path: str) -> None:
        """Make a folder, unless it is there or names need none."""
        if self.has_folders:
            with suppress(FileExistsError):
                self.call(lambda: self.fs.mkdir(path, create_parents=False))

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder, if it is there."""
        if self.has_folders and self.kind(path) == "directory":
            with suppress(FileNotFoundError):
                self.call(lambda: self.fs.rmdir(path))

    def put(self, path: str, data: bytes) -> None:
        """Store an object, all at once."""
        self.call(lambda: self.fs.pipe_file(path, data))

    def put_new(self, path: str, data: bytes) -> bool:
        """As `put`; false, and nothing is changed, where one is there and the store can tell."""
        try:
            self.call(lambda: self.fs.pipe_file(path, data, mode="create"))
        except (OSError, NotImplementedError, ValueError) as error:
            # servers have several errors for an object that is there, and for one that another
            # client makes at the same time
            if isinstance(error, FileExistsError) or self.kind(path) is not None:
                return False
            self.put(path, data)
        return True

    def get(self, path: str) -> bytes:
        """Fetch an object."""
        data: bytes = self.call(lambda: self.fs.cat_file(path))
        return data

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Fetch byte ranges of objects, concurrently where the store can; parts are paths."""
        paths = [run.part for run in runs]
        starts = [run.start for run in runs]
        stops = [run.stop for run in runs]
        found: list[bytes] = self.call(
            lambda: self.fs.cat_ranges(paths, starts, stops, on_error="raise")
        )
        for run, data in zip(runs, found, strict=True):
            if len(data) != run.stop - run.start:
                raise wrong_length(self.label)
        return found

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store; through the client where the store cannot."""
        try:
            self.call(lambda: self.fs.cp_file(source, target))
        except NotImplementedError:
            self.put(target, self.get(source))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects, those that are there."""
        # never `rm`, to which brackets and stars in a name are a pattern
        self.each(self._remove_one, paths)

    def each(self, call: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Call a function for each item, concurrently; after a failure no more are begun."""
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            return list(threads.map(call, items))

    def remove_many(self, paths: Sequence[str]) -> None:
        """As `remove`, by as few requests as the store can; without a word of those that stay."""
        # other file systems may take no lists
        if isinstance(self.fs, AsyncFileSystem) and not any(map(has_magic, paths)):
            with suppress(OSError):
                self.call(lambda: self.fs.rm(paths))

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.call(lambda: self.fs.rm_file(path))

    def _fresh(self, function: Callable[[], _Result]) -> _Result:
        """Call the file system without the listings that fsspec keeps."""
        self.call(self.fs.invalidate_cache)
        return self.call(function)


def wrong_length(label: str) -> OSError:
    """Error of a staged object that is longer or shorter than its record says."""
    return OSError(
        errno.EIO, f"{label}: a staged object has not the length that was written; write again"
    )


def pieces(runs: Iterable[Run], nbytes: int = PIECE_NBYTES) -> Iterator[Run]:
    """Divide runs into pieces that pass through the client one at a time."""
    for run in runs:
        for start in range(run.start, run.stop, nbytes):
            yield Run(run.part, start, min(start + nbytes, run.stop))


@dataclass(frozen=True, slots=True)
class StagingArea:
    """A folder of staged objects.

    Object stores have no folders that could be removed under a task which still runs, as tasks
    do after an interrupt or a failure of another. So there is a marker: who stages an object looks
    for it afterwards, a write that clears the area removes it first. Whatever the order, nothing
    stays. The process that owns the area, and will clear it itself, knows it from memory.
    """

    store: ObjectStore
    folder: str

    def path(self, name: str) -> str:
        """Path of a staged object."""
        return f"{self.folder}/{name}"

    def open(self) -> None:
        """Make the area; shows at once whether the store can be written.

        Raises
        ------
        OSError
            It cannot, or there is no such bucket.
        """
        label = self.store.label
        try:
            self.store.make_folder(self.folder)
            self.store.put(self.path(_OPEN), b"")
            # some of fsspec's file systems that only read let what is written vanish
            self.check()
        except FileNotFoundError as error:
            problem = "nothing can be put there; is there such a bucket or folder?"
            if error.strerror == NO_BUCKET:
                problem = NO_BUCKET
            raise FileNotFoundError(errno.ENOENT, problem, label) from error
        except (NotImplementedError, ValueError) as error:
            raise OSError(
                errno.EROFS, f"fsspec cannot write to this store ({error}); write elsewhere", label
            ) from error

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Take it on to clear the area, at the latest when the block fails."""
        _owned[self.folder] = os.getpid()
        try:
            yield
        finally:
            _owned.pop(self.folder, None)

    @property
    def is_owned(self) -> bool:
        """Whether this process has opened the area, and has not cleared it."""
        return _owned.get(self.folder) == os.getpid()

    def put(self, name: str, data: bytes) -> None:
        """Stage an object.

        Raises
        ------
        FileNotFoundError
            The area was cleared; the object is not left there.
        """
        self.store.put(self.path(name), data)
        self.confirm(self.path(name))

    def put_new(self, name: str, data: bytes) -> bool:
        """As `put`; false, and nothing is changed, where there is one of that name."""
        is_staged = self.store.put_new(self.path(name), data)
        self.confirm(self.path(name) if is_staged else None)
        return is_staged

    def confirm(self, path: str | None) -> None:
        """Look whether the area is still open, where something was staged; else remove that."""
        if self.is_owned:
            return
        try:
            self.check()
        except FileNotFoundError:
            if path is not None:
                self.store.remove([path])
            raise

    def check(self) -> None:
        """Raise FileNotFoundError where the area was cleared."""
        if self.store.kind(self.path(_OPEN)) is None:
            raise FileNotFoundError(
                errno.ENOENT,
                "this write has ended or was given up: its staging area is gone"
                + only_here(self.store.label),
                self.store.label,
            )

    def names(self) -> list[str]:
        """Names of the staged objects."""
        return self.store.names(self.folder)

    def close(self) -> list[str]:
        """Let nothing more be staged; gives the names of what is to be removed."""
        _owned.pop(self.folder, None)
        self.store.remove([self.path(_OPEN)])
        return self.names()

    def remove(self, names: Sequence[str]) -> None:
        """Remove the objects of a closed area; what is staged later is removed by who stages it."""
        if len(names) > CONCURRENCY:
            self.store.remove_many([*map(self.path, names)])
            names = self.names()
        self.store.remove(map(self.path, names))
        self.store.remove_folder(self.folder)
