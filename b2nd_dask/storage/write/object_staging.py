"""Contiguous and sparse frames written to fsspec stores.

Every task puts what it compresses as an object into a staging area beside the target. What passes
through the process that commits a contiguous frame, besides header, index and trailer:

S3, frames up to 16 MiB
    All of it, by one request that makes the target.
S3, larger frames
    The objects that are smaller than the 5 MiB that S3 requires of a part, and what they and the
    header lack of 5 MiB. They lie at the front of the frame, in the order of their first chunks;
    all others follow in the same order and are copied by the server. A task stages 32 MiB at a
    time, or all that it has: chunks of a dask block should compress to 5 MiB together, or more.
Google's stores
    Nothing: they join objects of any size, 32 by one request.
Other stores, and servers of S3 that copy no parts
    All of it, in pieces of 16 MiB: fsspec has no call that joins objects there.

When the target appears: on S3 by one request, which fails on a server that supports conditional
writes where ``mode="w-"`` meets an object made meanwhile; in Google's stores by one request, too.
Elsewhere when fsspec commits the transaction that the file was written in. Whether that is atomic
depends on the store: memory and the usual object stores are, file systems that copy a finished file
may not be.

Sparse frames: numbers of chunks are known at the end only, so chunks are staged, then copied to
their names inside the store, and the index object comes last: until then readers see no frame. No
store can replace many objects at once, and a mix of old and new chunks would read as valid data. So
nothing is ever replaced; and of two writers of one name, who would mix their chunks as well, one or
both withdraw.
"""

from __future__ import annotations

import errno
import itertools
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import call

import numpy as np

from b2nd_dask.storage.byte_reader import CHUNK_MEMBER, MAIN_MEMBER, ByteReader, chunk_member
from b2nd_dask.storage.read.location import Location
from b2nd_dask.storage.write.object_store import ObjectStore, StagingArea, pieces, wrong_length
from b2nd_dask.storage.write.s3_join import Limits, ServerJoin, abort_uploads
from b2nd_dask.storage.write.staging import FILE_SUFFIX, Placement, Run, StagedChunks, Staging

logger = logging.getLogger("b2nd_dask")

#: Names of what is staged.
_STAGED = re.compile(r"[0-9a-f]{32}")
#: Source: https://cloud.google.com/storage/docs/composite-objects
_COMPOSED_AT_ONCE = 32
#: Chunks in objects smaller than this go to the front of the frame.
_SMALL_OBJECT = Limits().min_part


@dataclass(frozen=True)
class BaseObjectStaging(Staging):
    """The common part of contiguous and sparse frames."""

    location: Location

    # S3 joins objects of 5 MiB and more; much larger ones would only take memory
    batch_nbytes = 32 << 20

    @property
    def label(self) -> str:
        """URL of the target, without secrets."""
        return self.location.label

    def area(self, *, private: bool = False) -> StagingArea:
        """Connect to the staging area, from the process that calls."""
        store = ObjectStore.of(self.location, private=private)
        return StagingArea(store, f"{store.target}.{self.key}.staging")

    def prepare(self) -> None:
        """Look at the target while the area is made; see `Staging.prepare`."""
        store = self.area().store
        # where the target is refused, an area that is to be resumed must stay as it is; and file
        # systems with folders may have one connection
        if self.resumable or store.has_folders:
            super().prepare()
            return
        check_writable(store)
        try:
            store.each(call, [self.check_target, self.make_area])
        except BaseException:
            with suppress(OSError):
                self.discard()
            raise

    def make_area(self) -> None:
        """Make the staging area; see `Staging.make_area`."""
        self.area().open()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """See `Staging.prepared`."""
        self.prepare()
        # what is to outlive this process may be cleared by any other
        with nullcontext() if self.resumable else self.area().owned():
            yield

    @property
    def is_prepared(self) -> bool:
        """See `Staging.is_prepared`."""
        return self.area().is_owned

    def inside(self, name: str) -> Location:
        """Locate a frame in the staging area; see `Staging.inside`."""
        # a URL may have a query behind its path
        path, mark, query = str(self.location.urlpath).rstrip("/").partition("?")
        if "?" in self.area().store.target:  # a character of the name
            path, mark, query = path + mark + query, "", ""
        return replace(self.location, urlpath=f"{path}.{self.key}.staging/{name}{mark}{query}")

    def reader(self) -> ByteReader:
        """Open the target; see `Staging.reader`."""
        return self.location.open()

    def exclusive(self) -> AbstractContextManager[None]:
        """Nothing: joining changes no staged object; see `Staging.exclusive`."""
        return nullcontext()

    def check_target(self) -> None:
        """See `Staging.check_target`."""
        store = self.area().store
        check_writable(store)
        kind = store.kind(store.target)
        if kind is not None and not self.replace:
            raise FileExistsError(
                errno.EEXIST, 'something is there already; pass mode="w" to replace it', self.label
            )
        if kind == "directory":
            raise FileExistsError(
                errno.EEXIST,
                "several objects begin with this name, perhaps those of a sparse frame, which a "
                "store cannot replace at once: remove them first, or write to another name",
                self.label,
            )

    def fetch(self, runs: Sequence[Run]) -> list[bytes]:
        """Get staged bytes back; see `Staging.fetch`."""
        # a manifest names objects of its own area only
        if not all(_STAGED.fullmatch(run.part) for run in runs):
            return [b""] * len(runs)
        area = self.area()
        located = [Run(area.path(run.part), run.start, run.stop) for run in runs]
        try:
            return area.store.fetch(located)
        except OSError:
            # an object is gone, or shorter than its manifest says: the others may be whole
            return area.store.each(partial(_fetched, area.store), located)

    def put(self, name: str, payload: bytes, *, fsync: bool = True) -> None:
        """See `Staging.put`; an object that was put is there."""
        self.area().put(f"{name}{FILE_SUFFIX}", payload)

    def put_new(self, name: str, payload: bytes) -> bool:
        """See `Staging.put_new`."""
        if name in self.names():
            return False
        return self.area().put_new(f"{name}{FILE_SUFFIX}", payload)

    def names(self) -> list[str]:
        """See `Staging.names`."""
        found = self.area().names()
        return [name.removesuffix(FILE_SUFFIX) for name in found if name.endswith(FILE_SUFFIX)]

    def get(self, name: str) -> bytes:
        """See `Staging.get`."""
        area = self.area()
        return area.store.get(area.path(f"{name}{FILE_SUFFIX}"))

    def sync(self, parts: Sequence[str]) -> None:
        """Nothing: an object that was put is there; see `Staging.sync`."""

    def discard(self) -> None:
        """Remove everything that was staged; give up what was begun with it."""
        area = self.area()
        names = area.close()
        try:
            if area.store.has_protocol("s3"):
                abort_uploads(area, names)
        finally:
            area.remove(names)


@dataclass(frozen=True)
class ObjectStaging(BaseObjectStaging):
    """A contiguous frame being written to an fsspec store."""

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage chunks as one object; see `Staging.append`."""
        name = uuid.uuid4().hex
        self.area().put(name, b"".join(payloads))
        edges = itertools.accumulate(map(len, payloads), initial=0)
        return [Run(name, start, stop) for start, stop in itertools.pairwise(edges)]

    def join(self, chunks: StagedChunks) -> Placement:
        """Choose the offset of each object; see `Staging.join`."""
        rows = chunks.rows
        used, first, index = np.unique(rows["part"], return_index=True, return_inverse=True)
        sizes = np.bincount(index, rows["nbytes"], minlength=len(used)).astype(np.int64)
        order = np.lexsort((first, sizes >= _SMALL_OBJECT))
        bases = np.empty_like(sizes)
        bases[order] = np.cumsum(sizes[order]) - sizes[order]
        runs = tuple(Run(chunks.parts[used[i]], 0, int(sizes[i])) for i in order)
        return Placement(bases[index] + rows["start"], int(sizes.sum()), runs)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Join the objects, in the store where it can; see `Staging.publish`."""
        area = self.area()
        runs = [Run(area.path(run.part), run.start, run.stop) for run in placement.runs]
        checks = [self.check_target, area.check]
        if area.store.has_protocol("s3"):
            ServerJoin(area, checks=checks).publish(head, runs, tail, replace=self.replace)
            area.store.call(area.store.fs.invalidate_cache)
            return
        area.store.each(call, checks)
        if not (area.store.has_protocol("gs") and _compose(area, head, runs, tail)):
            # nobody else's files must get into the transaction
            _stream(self.area(private=True).store, head, runs, tail)
        area.store.call(area.store.fs.invalidate_cache)


@dataclass(frozen=True)
class SparseObjectStaging(BaseObjectStaging):
    """A sparse frame being written to an fsspec store."""

    def check_target(self) -> None:
        """Check that nothing has the name, whatever the mode; see `Staging.check_target`."""
        store = self.area().store
        check_writable(store)
        # what a commit of this write has begun, it goes on with
        ours = self.resumable and self._claim_name in store.names(store.target)
        if store.kind(store.target) is not None and not ours:
            raise FileExistsError(
                errno.EEXIST,
                "something is there already, and a store cannot replace it by a sparse frame at "
                "once: remove it first, write to another name, or write a contiguous frame",
                self.label,
            )

    def append(self, payloads: Sequence[bytes]) -> list[Run]:
        """Stage each chunk as an object; see `Staging.append`."""
        area = self.area()
        names = [uuid.uuid4().hex for _ in payloads]
        area.store.each(lambda item: area.put(*item), zip(names, payloads, strict=True))
        return [Run(name, 0, len(data)) for name, data in zip(names, payloads, strict=True)]

    def join(self, chunks: StagedChunks) -> Placement:
        """Number the chunks without gaps; see `Staging.join`."""
        rows = chunks.rows[["part", "nbytes"]].tolist()
        runs = tuple(Run(chunks.parts[part], 0, nbytes) for part, nbytes in rows)
        return Placement(np.arange(len(rows)), sum(run.stop for run in runs), runs)

    def publish(self, placement: Placement, head: bytes, tail: bytes) -> None:
        """Copy the chunks to their names, then put the index; see `Staging.publish`."""
        area = self.area()
        store = area.store
        area.check()
        self._claim(store)
        named = [
            (area.path(run.part), f"{store.target}/{chunk_member(number)}")
            for number, run in enumerate(placement.runs)
        ]
        store.each(lambda pair: store.copy(*pair), named)
        area.check()
        store.put(f"{store.target}/{MAIN_MEMBER}", head + tail)
        store.remove([f"{store.target}/{self._claim_name}"])
        store.call(store.fs.invalidate_cache)

    def discard(self) -> None:
        """Remove what was staged, and chunks of a frame that was not finished."""
        super().discard()
        store = self.area().store
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
        store.make_folder(store.target)
        store.put(f"{store.target}/{self._claim_name}", b"")
        # looked for after the own claim: of two writers at least one sees the other
        names = store.names(store.target)
        if any(name != self._claim_name and not CHUNK_MEMBER.fullmatch(name) for name in names):
            store.remove([f"{store.target}/{self._claim_name}"])
            raise FileExistsError(
                errno.EEXIST,
                "another writer has created a frame here, or is creating one",
                self.label,
            )


def check_writable(store: ObjectStore) -> None:
    """Check that the store can be written; file systems of others fail late, or not at all.

    Raises
    ------
    OSError
        For web servers.
    ValueError
        For versions of S3 objects.
    """
    if store.has_protocol("http"):
        raise OSError(
            errno.EROFS,
            "a web server is read only; write to a path or an object store",
            store.label,
        )
    if store.has_protocol("s3") and store.fs.split_path(store.target)[2]:
        raise ValueError(f"{store.label}: a version of an object cannot be written")


def _compose(area: StagingArea, head: bytes, runs: Sequence[Run], tail: bytes) -> bool:
    """Join the objects inside one of Google's stores; false where it refuses to."""
    store, sizes = area.store, area.store.sizes(area.folder)
    if any((run.start, run.stop) != (0, sizes.get(run.part)) for run in runs):
        raise wrong_length(store.label)
    ends = [uuid.uuid4().hex for _ in range(2)]
    store.each(lambda end: area.put(*end), zip(ends, (head, tail), strict=True))
    paths = [area.path(ends[0]), *(run.part for run in runs), area.path(ends[1])]
    try:
        while len(paths) > _COMPOSED_AT_ONCE:
            groups = range(0, len(paths), _COMPOSED_AT_ONCE)
            paths = store.each(
                partial(_composed, area), [paths[at : at + _COMPOSED_AT_ONCE] for at in groups]
            )
        store.call(lambda: store.fs.merge(store.target, paths))
    except FileNotFoundError:
        raise
    except OSError as error:
        logger.info("%s: the store joins no objects (%s); this process does", store.label, error)
        return False
    return True


def _composed(area: StagingArea, paths: list[str]) -> str:
    joined = area.path(uuid.uuid4().hex)
    area.store.call(lambda: area.store.fs.merge(joined, paths))
    area.confirm(joined)
    return joined


def _stream(store: ObjectStore, head: bytes, runs: Iterable[Run], tail: bytes) -> None:
    """Write the target through the client, a piece at a time."""
    # a file that an error closes must not become the target: fsspec's transactions take it back
    transaction = store.fs.transaction
    transaction.start()
    with ExitStack() as undo:
        undo.callback(store.call, partial(transaction.complete, commit=False))
        file = store.call(partial(store.fs.open, store.target, "wb"))
        store.call(partial(file.write, head))
        for piece in pieces(runs):
            store.call(partial(file.write, store.fetch([piece])[0]))
        store.call(partial(file.write, tail))
        store.call(file.close)
        undo.pop_all()
    store.call(transaction.complete)


def _fetched(store: ObjectStore, run: Run) -> bytes:
    """Fetch a range; nothing where it is not there."""
    try:
        return store.fetch([run])[0]
    except OSError:
        return b""
