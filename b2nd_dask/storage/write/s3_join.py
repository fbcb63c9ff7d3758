"""Join staged objects into one, inside S3.

A multipart upload can copy its parts from existing objects (``UploadPartCopy``), so their bytes do
not pass through the client. Its completion makes the new object visible at once. Every part but the
last must have 5 MiB. So the client collects smaller sources, such as the header, in parts that it
uploads; if a part is too small, the client adds bytes of the next object.

Some S3 servers cannot copy parts: there all staged bytes pass through the client, a part at a time.
The first join finds out whether the server copies.
"""

from __future__ import annotations

import errno
import json
import logging
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import call
from typing import Any, TypeAlias

from b2nd_dask.storage.failures import MEANWHILE
from b2nd_dask.storage.write.object_store import (
    CONCURRENCY,
    PIECE_NBYTES,
    ObjectStore,
    StagingArea,
    pieces,
)
from b2nd_dask.storage.write.staging import Run

logger = logging.getLogger("b2nd_dask")

#: The client fetches frames up to this size and puts them by one request. A multipart upload would
#: also fetch up to 5 MiB, and needs three more requests.
SMALL_FRAME_NBYTES = 16 << 20
#: Suffix of objects that record a multipart upload in progress.
UPLOAD_SUFFIX = ".upload"
#: Errors of servers that cannot copy parts: "not implemented", or an invalid completion, since the
#: copied part is missing.
_REFUSALS = (errno.ENOSYS, errno.EINVAL)

_copies: dict[str, bool] = {}
"""Whether each endpoint copies parts, as far as this process knows."""

Source: TypeAlias = bytes | Run
"""Bytes in this process, or a range of an object (`Run.part` is its path)."""
Part: TypeAlias = Run | tuple[Source, ...]
"""A run, which the server copies, or a tuple of sources, which the client uploads."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a multipart upload."""

    min_part: int = 5 << 20
    """Bytes that every part but the last must have."""
    max_part: int = 5 << 30
    max_parts: int = 10_000
    piece: int = PIECE_NBYTES
    """Bytes of a part that the client collects."""


def plan_parts(sources: Sequence[Source], limits: Limits) -> list[Part]:
    """Divide sources, in the order of the new object, into parts.

    A part that the client uploads has at most `Limits.piece` bytes and one more source, which is
    too small for a part or consists of bytes in this process.
    """
    parts: list[Part] = []
    pending: list[Source] = []
    pending_nbytes = 0
    for source in filter(nbytes_of, sources):
        if isinstance(source, Run) and nbytes_of(source) >= limits.min_part:
            rest = source
            if 0 < pending_nbytes < limits.min_part:
                top_up, rest = _split(source, limits.min_part - pending_nbytes, limits)
                pending.append(top_up)
            if pending:
                parts.append(tuple(pending))
                pending, pending_nbytes = [], 0
            if nbytes_of(rest):
                parts.append(rest)
            continue
        pending.append(source)
        pending_nbytes += nbytes_of(source)
        if pending_nbytes >= limits.piece:
            parts.append(tuple(pending))
            pending, pending_nbytes = [], 0
    return [*parts, tuple(pending)] if pending else parts


def nbytes_of(source: Source) -> int:
    """Bytes in a source."""
    return source.stop - source.start if isinstance(source, Run) else len(source)


def _split(run: Run, nbytes: int, limits: Limits) -> tuple[Run, Run]:
    """Split a run after `nbytes` bytes, or at its end if the rest were too small for a part."""
    if nbytes_of(run) - nbytes < limits.min_part:
        nbytes = nbytes_of(run)
    middle = run.start + nbytes
    return Run(run.part, run.start, middle), Run(run.part, middle, run.stop)


@dataclass(frozen=True, slots=True)
class ServerJoin:
    """Joins staged objects into new ones."""

    area: StagingArea
    """The store of the target, and of the staged objects."""
    limits: Limits = Limits()
    checks: Sequence[Callable[[], None]] = ()
    """Checks that run while the parts are made; if one raises an error, no target is made."""

    def publish(self, head: bytes, runs: Sequence[Run], tail: bytes, *, replace: bool) -> None:
        """Join head, runs and tail into the target.

        The parts of runs are paths of objects; runs smaller than a part come first. Raises
        FileExistsError if the target exists and may not be replaced, OSError if the request fails,
        or the frame is too large for the store.
        """
        if len(head) + sum(map(nbytes_of, runs)) + len(tail) <= SMALL_FRAME_NBYTES:
            calls: list[Callable[[], Any]] = [*self.checks, partial(self.area.fetch, runs)]
            fetched = self.area.each(call, calls)[-1]
            body = b"".join([head, *fetched, tail])
            self._create_target("put_object", replace, Body=body, **self._key_of(self.area.target))
            return
        endpoint = self.area.call(lambda: self.area.fs.s3.meta.endpoint_url)
        if _copies.get(endpoint, True):
            parts = self._plan_copies(head, runs, tail)
            has_copies = any(isinstance(part, Run) for part in parts)
            try:
                self._join(self.area.target, parts, replace=replace)
            except OSError as error:
                if not has_copies or endpoint in _copies or error.errno not in _REFUSALS:
                    raise
                logger.info("%s: the store cannot copy parts; this process does", self.area.label)
            else:
                if has_copies:
                    _copies[endpoint] = True
                return
        self._join(self.area.target, self._plan_transfers(head, runs, tail), replace=replace)
        _copies[endpoint] = False

    def _plan_copies(self, head: bytes, runs: Sequence[Run], tail: bytes) -> list[Part]:
        """Plan parts; the store copies the runs that are large enough."""
        parts = plan_parts([head, *runs, tail], self.limits)
        if len(parts) > self.limits.max_parts:
            parts = plan_parts([head, *self._merge_runs(runs), tail], self.limits)
        return parts

    def _plan_transfers(self, head: bytes, runs: Sequence[Run], tail: bytes) -> list[Part]:
        """Plan parts that all pass through the client."""
        nbytes = len(head) + sum(map(nbytes_of, runs)) + len(tail)
        piece = max(self.limits.piece, -(-nbytes // (self.limits.max_parts - 1)))
        # with this limit no run is large enough for a copy
        limits = Limits(min_part=sys.maxsize, piece=piece)
        return plan_parts([head, *pieces(runs, piece), tail], limits)

    def _merge_runs(self, runs: Sequence[Run]) -> list[Run]:
        """Join large objects into larger ones, for fewer parts."""
        small = [run for run in runs if nbytes_of(run) < self.limits.min_part]
        groups: list[list[Run]] = [[]]
        for run in runs[len(small) :]:
            # a group has fewer objects than an upload has parts, since each is large
            if sum(map(nbytes_of, [*groups[-1], run])) > self.limits.max_part:
                groups.append([])
            groups[-1].append(run)
        return [*small, *map(self._merge, filter(None, groups))]

    def _merge(self, group: list[Run]) -> Run:
        if len(group) == 1:
            return group[0]
        path = self.area.place(uuid.uuid4().hex)
        self._join(path, group, replace=True)
        return Run(path, 0, sum(map(nbytes_of, group)))

    def _join(self, path: str, parts: Sequence[Part], *, replace: bool) -> None:
        if len(parts) > self.limits.max_parts:
            raise OSError(
                errno.EFBIG,
                f"the frame needs {len(parts)} parts, but S3 joins only {self.limits.max_parts}; "
                "write with larger dask blocks, so that each stages more than "
                f"{self.limits.min_part} compressed bytes",
                self.area.label,
            )
        upload = self._call("create_multipart_upload", **self._key_of(path))
        named = {**self._key_of(path), "UploadId": upload["UploadId"]}
        record = self.area.place(uuid.uuid4().hex + UPLOAD_SUFFIX)
        try:
            # a record of the upload, in case this process is killed
            self.area.put(record, json.dumps(named).encode())
            made = self._upload(parts, named)
            # if the user's options turn on checksums, S3 requires those of the parts
            listed = _part_list(made, with_checksums="ChecksumAlgorithm" in upload)
            self._create_target(
                "complete_multipart_upload", replace, MultipartUpload={"Parts": listed}, **named
            )
        except BaseException:
            # the area may be closed already. If the abort fails, `discard` finds the record
            _abort(self.area, named)
            self.area.remove([record])
            raise
        self.area.remove([record])

    def _upload(self, parts: Sequence[Part], named: dict[str, str]) -> list[dict[str, Any]]:
        """Make the parts while the checks run; return the response for each part.

        Copies and parts of bytes in this process are requested concurrently. One thread makes the
        parts that need a fetch, so that only one of them is in memory.
        """
        with ThreadPoolExecutor(CONCURRENCY) as threads, ThreadPoolExecutor(1) as one_thread:
            running: list[Future[Any]] = [threads.submit(check) for check in self.checks]
            for number, part in enumerate(parts, start=1):
                needs_fetch = not isinstance(part, Run) and any(isinstance(s, Run) for s in part)
                pool = one_thread if needs_fetch else threads
                running.append(pool.submit(self._upload_part, number, part, named))
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                for each in running:
                    each.cancel()
        # if the write was given up, its parts are gone; then the error of a check comes first
        done = [each.result() for each in running if not each.cancelled()]
        return done[len(self.checks) :]

    def _upload_part(self, number: int, part: Part, named: dict[str, str]) -> dict[str, Any]:
        if isinstance(part, Run):
            return self._upload_copy(number, part, named)
        fetched = iter(self.area.fetch([source for source in part if isinstance(source, Run)]))
        body = b"".join(source if isinstance(source, bytes) else next(fetched) for source in part)
        return self._call("upload_part", PartNumber=number, Body=body, **named)

    def _upload_copy(self, number: int, run: Run, named: dict[str, str]) -> dict[str, Any]:
        response = self._call(
            "upload_part_copy",
            PartNumber=number,
            CopySource=self._key_of(run.part),
            CopySourceRange=f"bytes={run.start}-{run.stop - 1}",
            **named,
        )
        result: dict[str, Any] = response.get("CopyPartResult", {})
        if "ETag" not in result:
            # the server has treated the request as an upload of no bytes
            raise OSError(errno.ENOSYS, "the store cannot copy parts of objects", self.area.label)
        return result

    def _create_target(self, method: str, replace: bool, **kwargs: Any) -> None:
        """Create the target by one request, which fails if it exists, unless `replace`."""
        if replace:
            self._call(method, **kwargs)
            return
        try:
            self._call(method, IfNoneMatch="*", **kwargs)
        except OSError as error:
            if self.area.kind(self.area.target) is not None:
                raise FileExistsError(errno.EEXIST, MEANWHILE, self.area.label) from error
            # a server without conditional writes: the check above found no target
            if error.errno != errno.ENOSYS:
                raise
            self._call(method, **kwargs)

    def _key_of(self, path: str) -> dict[str, str]:
        bucket, key, _ = self.area.fs.split_path(path)
        return {"Bucket": bucket, "Key": key}

    def _call(self, method: str, **kwargs: Any) -> dict[str, Any]:
        response: dict[str, Any] = self.area.call(lambda: self.area.fs.call_s3(method, **kwargs))
        return response


def abort_uploads(area: StagingArea, names: Sequence[str]) -> None:
    """Abort the multipart uploads that a staging area records."""
    for name in names:
        if name.endswith(UPLOAD_SUFFIX):
            _abort(area, json.loads(area.get(area.place(name))))


def _abort(store: ObjectStore, named: dict[str, str]) -> None:
    # the upload may have ended already
    with suppress(FileNotFoundError):
        store.call(lambda: store.fs.call_s3("abort_multipart_upload", **named))


def _part_list(made: list[dict[str, Any]], *, with_checksums: bool) -> list[dict[str, Any]]:
    """Make the list of parts for the completion of an upload."""
    prefixes = ("ETag", "Checksum") if with_checksums else ("ETag",)
    return [
        {"PartNumber": number, **{k: v for k, v in response.items() if k.startswith(prefixes)}}
        for number, response in enumerate(made, start=1)
    ]
