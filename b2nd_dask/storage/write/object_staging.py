"""Contiguous and sparse frames written to fsspec stores.

Every task stages its compressed chunks as objects in an area beside the target. For a contiguous
frame, the committing process transfers header, index and trailer, and some of the chunks:

S3 (`s3_join`)
    All chunks of a frame up to 16 MiB; of a larger one, objects below 5 MiB. The server copies all
    others, so the chunks of a dask block should compress to 5 MiB or more.
Google's stores
    No chunks: they join objects of any size, 32 per request.
Other stores, and S3 servers that copy no parts
    All chunks, in pieces of 16 MiB: fsspec has no call that joins objects there.

On S3 and in Google's stores one request publishes the target. With ``mode="w-"``, an S3 server with
conditional writes rejects this request if another writer has made the object in the meantime. In
other stores fsspec publishes the target when it commits the transaction of the file. This is atomic
in memory and the usual object stores, perhaps not in file systems that copy a finished file.

Sparse frames: the numbers of chunks are known only at the end. So chunks are staged, then the store
copies them to their names. The index object comes last; until then readers see no frame. No store
can replace many objects at once, and a mix of old and new chunks would read as valid data, so
existing frames are never replaced. If two writers use one name, at least one withdraws.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import call
from typing import Any

from numpy.typing import NDArray

from b2nd_dask.storage.byte_reader import CHUNK_MEMBER, MAIN_MEMBER, chunk_member
from b2nd_dask.storage.failures import MEANWHILE
from b2nd_dask.storage.read.location import Location
from b2nd_dask.storage.urls import split_path
from b2nd_dask.storage.write.object_store import ObjectStore, StagingArea
from b2nd_dask.storage.write.s3_join import Limits, ServerJoin, abort_uploads
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

logger = logging.getLogger("b2nd_dask")

#: Source: https://cloud.google.com/storage/docs/composite-objects
_COMPOSED_AT_ONCE = 32
#: Objects smaller than this go to the front of the frame.
_SMALL_OBJECT = Limits().min_part


@dataclass(frozen=True)
class BaseObjectStaging(Staging):
    """Base of stagings in stores, contiguous and sparse."""

    # S3 joins objects of at least 5 MiB; much larger batches only cost memory
    batch_nbytes = 32 << 20

    def area(self) -> StagingArea:
        """Connect the calling process to the store and the staging area.

        File systems of fsspec without writes fail late, or not at all. Raises OSError for a web
        server, ValueError if the target is a version of an S3 object.
        """
        store = ObjectStore.of(self.location)
        if store.has_protocol("http"):
            raise OSError(
                errno.EROFS,
                "web servers are read-only; write to a path or an object store",
                store.label,
            )
        if store.has_protocol("s3") and store.fs.split_path(store.target)[2]:
            raise ValueError(f"{store.label}: a version of an object cannot be written; omit it")
        return StagingArea(**vars(store), folder=f"{store.target}.{self.key}.staging")

    def prepare(self) -> None:
        """Check the target and make the area, concurrently if possible; see `Staging.prepare`."""
        store = self.area()
        # in order if the area can be resumed, since it must not change if the check fails; also in
        # file systems with folders, which may have a single connection
        if self.resumable or store.has_folders:
            super().prepare()
            return
        try:
            store.each(call, [self.check_target, self.make_area])
        except BaseException:
            with suppress(Exception):  # nothing is staged yet
                self.discard()
            raise

    def make_area(self) -> None:
        """Make the staging area; see `Staging.make_area`."""
        self.area().open()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """See `Staging.prepared`."""
        # an area that can be resumed may outlive this process, and any process may clear it
        owned = nullcontext() if self.resumable else self.area().owned()
        with super().prepared(), owned:
            yield

    @property
    def is_prepared(self) -> bool:
        """See `Staging.is_prepared`."""
        return self.area().is_owned

    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area; see `Staging.inside`."""
        path, rest = split_path(self.location.url)
        if "?" in rest and "?" in self.area().target:
            # a character of the name in this store
            path, rest = self.location.url, ""
        folder = f"{path.rstrip('/')}.{self.key}.staging"
        return replace(self.location, urlpath=f"{folder}/{name}{rest}")

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Get staged bytes back; see `Staging.fetch`."""
        area = self.area()
        return area.fetch_some([run._replace(part=area.place(run.part)) for run in runs])

    def put(self, name: str, payload: bytes, *, fsync: bool = True, only_new: bool = False) -> bool:
        """See `Staging.put`; stores need no sync."""
        return self.area().stage(f"{name}{FILE_SUFFIX}", payload, only_new=only_new)

    def names(self) -> list[str]:
        """See `Staging.names`."""
        area = self.area()
        found = area.names(area.folder)
        return [name.removesuffix(FILE_SUFFIX) for name in found if name.endswith(FILE_SUFFIX)]

    def get(self, name: str) -> bytes:
        """See `Staging.get`."""
        area = self.area()
        return area.get(area.place(f"{name}{FILE_SUFFIX}"))

    def discard(self) -> None:
        """Remove all staged objects; abort their multipart uploads."""
        area = self.area()
        names = area.close()
        try:
            if area.has_protocol("s3"):
                abort_uploads(area, names)
        finally:
            area.empty(names)


@dataclass(frozen=True)
class ObjectStaging(BaseObjectStaging):
    """A contiguous frame being written to an fsspec store."""

    def check_target(self, exists: str = EXISTS) -> None:
        """See `Staging.check_target`; `exists` is the text of the error for an existing object."""
        store = self.area()
        kind = store.kind(store.target)
        if kind == "directory":
            raise FileExistsError(
                errno.EEXIST,
                "several objects have names that start with this one, as in a sparse frame, and a "
                "store cannot replace them at once; remove them first, or write to another name",
                self.label,
            )
        if kind is not None and not self.replace:
            raise FileExistsError(errno.EEXIST, exists, self.label)

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage chunks as one object; see `Staging.append`."""
        return adjacent(self.area().add(b"".join(payloads)), payloads)

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Lay out the ranges of objects; see `Staging.join`.

        An object has several ranges if some of its chunks were staged again elsewhere.
        """
        placement = lay_out(parts, rows, Run("", 0, 0), 0, small=_SMALL_OBJECT)
        return placement._replace(runs=placement.runs[1:])

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Join the objects, inside the store if possible; see `Staging.publish`."""
        area = self.area()
        runs = [run._replace(part=area.place(run.part)) for run in placement.runs]
        checks: list[Callable[[], None]] = [partial(self.check_target, MEANWHILE), area.check]
        if area.has_protocol("s3"):
            ServerJoin(area, checks=checks).publish(head, runs, tail, replace=self.replace)
        else:
            area.each(call, checks)
            if not (area.has_protocol("gs") and _compose(area, head, runs, tail)):
                # a file system of its own: the transaction must not include files of other writers
                options = {**(self.location.storage_options or {}), "skip_instance_cache": True}
                private = replace(self.location, storage_options=options)
                ObjectStore.of(private).stream(head, runs, tail)
        area.call(area.fs.invalidate_cache)


@dataclass(frozen=True)
class SparseObjectStaging(BaseObjectStaging):
    """A sparse frame being written to an fsspec store."""

    def check_target(self) -> None:
        """Check that the name is free, whatever the mode; see `Staging.check_target`."""
        store = self.area()
        exists = store.kind(store.target) is not None
        # an earlier commit of this write may have started; this one continues it
        if exists and not (self.resumable and self._claim_name in store.names(store.target)):
            raise FileExistsError(
                errno.EEXIST,
                "the target exists already, and a store cannot replace it by a sparse frame at "
                "once: remove it first, write to another name, or write a contiguous frame",
                self.label,
            )

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage each chunk as an object; see `Staging.append`."""
        area = self.area()
        names = area.each(area.add, payloads)
        return [Run(name, 0, len(data)) for name, data in zip(names, payloads, strict=True)]

    def join(self, parts: Sequence[str], rows: NDArray[Any]) -> Placement:
        """Number the chunks without gaps; see `Staging.join`."""
        return number_chunks(parts, rows)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Copy the chunks to their names, then put the index; see `Staging.publish`."""
        area = self.area()
        area.check()
        self._claim(area)
        named = [
            (area.place(run.part), f"{area.target}/{chunk_member(number)}")
            for number, run in enumerate(placement.runs)
        ]
        area.each(lambda pair: area.copy(*pair), named)
        area.check()
        area.put(f"{area.target}/{MAIN_MEMBER}", head + tail)
        area.remove([f"{area.target}/{self._claim_name}"])
        area.call(area.fs.invalidate_cache)

    def discard(self) -> None:
        """Remove all staged objects, and the chunks of an unfinished frame."""
        super().discard()
        store = self.area()
        names = store.names(store.target)
        if self._claim_name in names:
            unfinished = [] if MAIN_MEMBER in names else filter(CHUNK_MEMBER.fullmatch, names)
            store.remove(f"{store.target}/{name}" for name in (*unfinished, self._claim_name))
            if MAIN_MEMBER not in names:
                store.remove_folder(store.target)

    @property
    def _claim_name(self) -> str:
        return f"{self.key}.writing"

    def _claim(self, store: ObjectStore) -> None:
        """Claim the name for this write, unless another writer has."""
        problem = "another writer has created a frame here, or is creating one"
        taken = FileExistsError(errno.EEXIST, problem, self.label)
        # S3 may have an object and a folder of one name; readers would see the object only
        if store.kind(store.target) == "file":
            raise taken
        store.make_folder(store.target)
        store.put(f"{store.target}/{self._claim_name}", b"")
        # checked after the own claim: at least one of two writers sees the other
        names = store.names(store.target)
        if any(name != self._claim_name and not CHUNK_MEMBER.fullmatch(name) for name in names):
            store.remove([f"{store.target}/{self._claim_name}"])
            raise taken


def _compose(area: StagingArea, head: bytes, runs: Sequence[Run], tail: bytes) -> bool:
    """Join the objects inside one of Google's stores; return False if the store refuses.

    The stores join only whole objects. So a range of an object, some of whose chunks were staged
    again, is first copied to a new object.
    """
    sizes = {path: entry.get("size") for path, entry in area.entries(area.folder).items()}
    first, last = map(area.place, area.each(area.add, [head, tail]))
    paths = [first]
    for run in runs:
        is_whole = (run.start, run.stop) == (0, sizes.get(run.part))
        paths.append(run.part if is_whole else area.place(area.add(*area.fetch([run]))))
    paths.append(last)
    try:
        while len(paths) > _COMPOSED_AT_ONCE:
            groups = range(0, len(paths), _COMPOSED_AT_ONCE)
            paths = area.each(
                partial(_compose_group, area), [paths[at : at + _COMPOSED_AT_ONCE] for at in groups]
            )
        area.call(lambda: area.fs.merge(area.target, paths))
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError) as error:
        logger.info("%s: the store cannot join objects (%s); this process does", area.label, error)
        return False
    return True


def _compose_group(area: StagingArea, paths: list[str]) -> str:
    joined = area.place(uuid.uuid4().hex)
    area.call(lambda: area.fs.merge(joined, paths))
    area.confirm(joined)
    return joined
