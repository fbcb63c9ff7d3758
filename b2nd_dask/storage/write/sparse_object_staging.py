"""Sparse frames written to fsspec stores: each chunk an object.

Numbers of chunks are known at the end only, so chunks are staged, then copied to their names inside
the store, and the index object comes last: until then readers see no frame. No store can replace
many objects at once, and a mix of old and new chunks would read as valid data. So nothing is ever
replaced; and of two writers of one name, who would mix their chunks as well, one or both
withdraw.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from b2nd_dask.storage.members import CHUNK_MEMBER, MAIN_MEMBER, chunk_member
from b2nd_dask.storage.write.object_staging import BaseObjectStaging
from b2nd_dask.storage.write.object_store import ObjectStore
from b2nd_dask.storage.write.staging import Placement, Run, StagedChunks


@dataclass(frozen=True, slots=True)
class SparseObjectStaging(BaseObjectStaging):
    """A sparse frame being written to an fsspec store."""

    def check_target(self, store: ObjectStore) -> None:
        """Refuse a name that is taken, whatever the mode; see `Staging.prepare`."""
        # what a commit of this write has begun, it goes on with
        ours = self.resumable and self._claim_name in store.names(store.target)
        if store.kind(store.target) is not None and not ours:
            raise FileExistsError(
                errno.EEXIST,
                "something is there already, and a store cannot replace it by a sparse frame at "
                "once: remove it first, or write to another name, or a contiguous frame",
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
        sizes = chunks.nbytes.tolist()
        pieces = (
            Run(chunks.parts[part], 0, size)
            for part, size in zip(chunks.part.tolist(), sizes, strict=True)
        )
        return Placement(np.arange(len(sizes)), sum(sizes), tuple(pieces))

    def publish(self, joined: Placement, head: bytes, tail: bytes) -> None:
        """Copy the chunks to their names, then put the index; see `Staging.publish`."""
        area = self.area()
        store = area.store
        self._claim(store)
        named = [
            (area.path(run.part), f"{store.target}/{chunk_member(number)}")
            for number, run in enumerate(joined.pieces)
        ]
        store.each(lambda pair: store.copy(*pair), named)
        area.check()
        store.put(f"{store.target}/{MAIN_MEMBER}", head + tail)
        store.remove([f"{store.target}/{self._claim_name}"])
        store.ask(store.fs.invalidate_cache)

    def discard(self) -> None:
        """Remove what was staged, and chunks of a frame that was not finished."""
        # not super(): a dataclass with slots is another class than the one that the name was
        # bound to
        BaseObjectStaging.discard(self)
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
        """Say that chunks with final names are ours, unless somebody else has said so."""
        store.make_folder(store.target)
        store.put(f"{store.target}/{self._claim_name}", b"")
        # looked for after the own claim: of two writers at least one sees the other
        names = store.names(store.target)
        if any(name != self._claim_name and not CHUNK_MEMBER.fullmatch(name) for name in names):
            store.remove([f"{store.target}/{self._claim_name}"])
            raise FileExistsError(
                errno.EEXIST, "another writer has made a frame here, or is at it", self.label
            )
