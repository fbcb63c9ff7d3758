"""Object stores for writes: put, fetch, copy and remove objects.

A staging area is a folder of objects beside the target.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.core import has_magic

from b2nd_dask.storage.failures import NO_BUCKET, memory_hint
from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.write.staging import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

#: Most concurrent requests. Copies and removals cost the store, not the client.
CONCURRENCY = 16
#: Bytes per piece of transfers through the client; about one is in memory at a time.
PIECE_NBYTES = 16 << 20
#: Marker object of an open area; without it nothing may be staged.
_OPEN = "open"
_AREA = re.compile(r"\.[0-9a-f]{16}\.staging$")

#: Staging areas (folders) that this process has opened and will clear. The value is its process id,
#: in which forked children differ.
_owned: dict[str, int] = {}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ObjectStore(Connection):
    """File system of a target in this process. Its errors hold no secrets."""

    @property
    def target(self) -> str:
        """Path of the target."""
        return self.path.rstrip("/")

    @property
    def has_folders(self) -> bool:
        """Whether folders exist without objects; not in fsspec's async file systems."""
        return not isinstance(self.fs, AsyncFileSystem)

    def kind(self, path: str) -> str | None:
        """Return "file", "directory" or, if nothing is there, None."""
        with suppress(FileNotFoundError):
            return str(self._call_uncached(lambda: self.fs.info(path))["type"])
        return None

    def names(self, folder: str) -> list[str]:
        """Names of the objects below a folder; empty if it does not exist."""
        return [path[path.index(folder) + len(folder) + 1 :] for path in self.entries(folder)]

    def entries(self, folder: str) -> dict[str, dict[str, Any]]:
        """List the objects below a folder: the details that the store reports, by path."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            found = self._call_uncached(lambda: self.fs.find(folder, detail=True))
        return found

    def folders(self, parent: str) -> list[str]:
        """Paths of the folders in a folder; empty if it does not exist.

        Raises FileNotFoundError if there is no such bucket.
        """
        try:
            found = self._call_uncached(lambda: self.fs.ls(parent, detail=True))
        except FileNotFoundError as error:
            if error.strerror == NO_BUCKET:
                raise
            return []
        return [entry["name"].rstrip("/") for entry in found if entry["type"] == "directory"]

    def make_folder(self, path: str) -> None:
        """Make a folder, unless it exists or the store needs none."""
        if self.has_folders:
            with suppress(FileExistsError):
                self.call(lambda: self.fs.mkdir(path, create_parents=False))

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder, if it exists."""
        if self.has_folders and self.kind(path) == "directory":
            with suppress(FileNotFoundError):
                self.call(lambda: self.fs.rmdir(path))

    def put(self, path: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store an object, all at once.

        With `only_new`, change nothing and return False if the store notices that it exists.
        """
        if only_new:
            try:
                self.call(lambda: self.fs.pipe_file(path, data, mode="create"))
            except (OSError, NotImplementedError, ValueError) as error:
                # servers have several errors for an existing object, and for one that another
                # client makes at the same time
                if isinstance(error, FileExistsError) or self.kind(path) is not None:
                    return False
            else:
                return True
        self.call(lambda: self.fs.pipe_file(path, data))
        return True

    def get(self, path: str) -> bytes:
        """Fetch an object."""
        data: bytes = self.call(lambda: self.fs.cat_file(path))
        return data

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Fetch byte ranges of objects, concurrently if possible; the parts of runs are paths."""
        found = self.fetch_some(runs, on_error="raise")
        for run, data in zip(runs, found, strict=True):
            if len(data) != run.stop - run.start:
                problem = "a staged object does not have the written length; write again"
                raise OSError(errno.EIO, f"{self.label}: {problem}")
        return found

    def fetch_some(self, runs: Sequence[Run], *, on_error: str = "return") -> list[bytes]:
        """Like `fetch`, but a range that cannot be fetched returns other bytes, or fewer."""
        parts, starts, stops = ([run[column] for run in runs] for column in range(3))
        found = self.call(lambda: self.fs.cat_ranges(parts, starts, stops, on_error=on_error))
        return [b"" if isinstance(data, BaseException) else data for data in found]

    def stream(self, head: bytes, runs: Iterable[Run], tail: bytes) -> None:
        """Write the target through the client, a piece at a time."""
        # in a transaction, which discards the file after an error
        transaction = self.fs.transaction
        transaction.start()
        with ExitStack() as undo:
            undo.callback(self.call, partial(transaction.complete, commit=False))
            file = self.call(partial(self.fs.open, self.target, "wb"))
            self.call(partial(file.write, head))
            for piece in pieces(runs):
                self.call(partial(file.write, self.fetch([piece])[0]))
            self.call(partial(file.write, tail))
            self.call(file.close)
            undo.pop_all()
        self.call(transaction.complete)

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, or through the client if the store cannot."""
        try:
            self.call(lambda: self.fs.cp_file(source, target))
        except NotImplementedError:
            self.put(target, self.get(source))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects; ignore missing ones."""
        # never `rm`, which reads brackets and stars in a name as a pattern
        self.each(self._remove_one, paths)

    def each(self, call: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Call a function for each item, concurrently; after a failure no more calls start."""
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            return list(threads.map(call, items))

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.call(lambda: self.fs.rm_file(path))

    def _call_uncached(self, function: Callable[[], _Result]) -> _Result:
        """Call the file system after clearing the listings that fsspec caches."""
        self.call(self.fs.invalidate_cache)
        return self.call(function)


def pieces(runs: Iterable[Run], nbytes: int = PIECE_NBYTES) -> Iterator[Run]:
    """Divide runs into pieces for transfers through the client."""
    for run in runs:
        for start in range(run.start, run.stop, nbytes):
            yield Run(run.part, start, min(start + nbytes, run.stop))


@dataclass(frozen=True, eq=False, repr=False)
class StagingArea(ObjectStore):
    """The store of a target, with a folder of staged objects.

    After an interrupt or a failure, tasks may still run, and object stores have no folders whose
    removal would stop them. So the area has a marker. A task stages an object, then checks the
    marker; a write that clears the area first removes the marker. In either order no object stays.
    The process that owns the area, and will clear it itself, need not check.
    """

    folder: str
    """Path of the folder."""

    def place(self, name: str) -> str:
        """Path of a staged object."""
        return f"{self.folder}/{name}"

    def open(self) -> None:
        """Make the area, which also checks that the store is writable.

        Raises OSError if the store is not writable, or there is no such bucket; FileNotFoundError
        if the area lies in another area, which was cleared.
        """
        try:
            self.make_folder(self.folder)
            self.put(self.place(_OPEN), b"")
            # some read-only file systems of fsspec drop written bytes without an error
            self.check()
        except FileNotFoundError as error:
            problem = "the write failed; check that the bucket or folder exists"
            if error.strerror == NO_BUCKET:
                problem = NO_BUCKET
            raise FileNotFoundError(errno.ENOENT, problem, self.label) from error
        except (NotImplementedError, ValueError) as error:
            raise OSError(
                errno.EROFS,
                f"fsspec cannot write to this store ({error}); choose another target",
                self.label,
            ) from error
        outer = replace(self, folder=self.folder.rpartition("/")[0])
        if _AREA.search(outer.folder):
            try:
                outer.confirm(self.place(_OPEN))
            except FileNotFoundError:
                self.remove_folder(self.folder)
                raise

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the area during the block: this process must clear it, even if the block fails."""
        _owned[self.folder] = os.getpid()
        try:
            yield
        finally:
            _owned.pop(self.folder, None)

    @property
    def is_owned(self) -> bool:
        """Whether this process owns the area and has not cleared it."""
        return _owned.get(self.folder) == os.getpid()

    def stage(self, name: str, data: bytes, *, only_new: bool = False) -> bool:
        """Stage an object, as by `put`.

        Raises FileNotFoundError if the area was cleared; the object is removed again.
        """
        is_staged = self.put(self.place(name), data, only_new=only_new)
        if is_staged:
            self.confirm(self.place(name))
        elif not self.is_owned:
            self.check()
        return is_staged

    def add(self, data: bytes) -> str:
        """Stage an object under a new name; return the name; see `stage`."""
        name = uuid.uuid4().hex
        self.stage(name, data)
        return name

    def confirm(self, path: str) -> None:
        """Check that the area is still open; if not, remove the staged object and raise."""
        if self.is_owned:
            return
        try:
            self.check()
        except FileNotFoundError:
            self.remove([path])
            raise

    def check(self) -> None:
        """Raise FileNotFoundError if the area was cleared."""
        if self.kind(self.place(_OPEN)) is None:
            raise FileNotFoundError(
                errno.ENOENT,
                "this write has ended or was given up: its staging area does not exist"
                + memory_hint(self.label),
                self.label,
            )

    def close(self) -> list[str]:
        """Close the area to further objects; return the names of those to remove."""
        _owned.pop(self.folder, None)
        self.remove([self.place(_OPEN)])
        return self.names(self.folder)

    def empty(self, names: Sequence[str]) -> None:
        """Remove the objects of a closed area; tasks remove the objects that they stage later."""
        # in few requests, if `rm` accepts lists, and no name looks like a pattern
        if len(names) > CONCURRENCY and not self.has_folders and not has_magic(self.folder):
            with suppress(OSError):
                self.call(lambda: self.fs.rm([*map(self.place, names)]))
            names = self.names(self.folder)
        self.remove(map(self.place, names))
        self.remove_folder(self.folder)
