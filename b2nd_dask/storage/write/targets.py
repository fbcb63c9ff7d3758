"""Choice of the staging for a location."""

from __future__ import annotations

import os
import uuid

from b2nd_dask.storage.byte_reader import Identity
from b2nd_dask.storage.read.location import Location
from b2nd_dask.storage.write.local_staging import ContiguousStaging, SparseStaging
from b2nd_dask.storage.write.local_update import ContiguousUpdate, LocalUpdate, SparseUpdate
from b2nd_dask.storage.write.object_staging import ObjectStaging, SparseObjectStaging
from b2nd_dask.storage.write.staging import Staging
from b2nd_dask.system import require_writable


def staging_for(
    location: Location,
    *,
    sparse: bool,
    replace: bool,
    header_len: int,
    resume_key: str | None = None,
    replaces: Identity | None = None,
    fsync: bool = True,
) -> Staging:
    """Choose the staging that writes a new frame to a local path or a URL.

    A sparse frame is a directory of chunk files; `header_len` counts the bytes of the frame's
    header. `resume_key`, 16 hexadecimal digits, is the same for every run of one write: each run
    reuses the bytes that earlier runs have staged. By default the write gets a key of its own.
    `replaces` is the identity of the only frame that may be replaced at a local path; by default
    any may. With `fsync`, publishing at a local path waits until the frame is on the disk. Object
    stores confirm each object themselves.

    Raises OSError for a local path on Windows, ValueError if the location is bytes, has an offset
    inside a file, or is the URL of a directory for a contiguous frame.
    """
    if isinstance(location.urlpath, bytes) or location.offset:
        raise ValueError(
            f"{location.label}: a frame cannot be written into bytes, or at an offset in a file; "
            "pass the path or URL of a new file"
        )
    key, resumable = _key(resume_key)
    if location.is_url:
        if not sparse and location.urlpath.endswith("/"):
            raise ValueError(
                f"{location.label}: a URL that ends with / is that of a sparse frame; pass "
                "contiguous=False, or omit the /"
            )
        form = SparseObjectStaging if sparse else ObjectStaging
        return form(key, resumable, replace, location)
    require_writable(location.label)
    target = os.path.realpath(location.urlpath)
    local = SparseStaging if sparse else ContiguousStaging
    return local(key, resumable, replace, target, header_len, replaces=replaces, fsync=fsync)


def update_staging_for(
    location: Location,
    *,
    identity: Identity,
    sparse: bool,
    header_len: int,
    frame_len: int,
    cbytes: int,
    resume_key: str | None = None,
    fsync: bool = True,
) -> LocalUpdate:
    """Choose the staging that changes a frame at a local path in place.

    `identity` is that of the frame when it was opened; the lengths are those in its header. For the
    key see `staging_for`. With `fsync`, publishing waits for the switch; it always waits for the
    new chunks and index.

    Raises OSError on Windows, ValueError if the frame is in an object store, in bytes or in a
    container; it cannot be changed there.
    """
    if isinstance(location.urlpath, bytes) or location.offset or location.is_url:
        raise ValueError(
            f"{location.label}: only frames in local files can be changed; write a new frame, in "
            "parts if many jobs write it (create)"
        )
    require_writable(location.label)
    key, resumable = _key(resume_key)
    target = os.path.realpath(location.urlpath)
    form = SparseUpdate if sparse else ContiguousUpdate
    state = identity, frame_len, cbytes
    return form(key, resumable, True, target, header_len, *state, fsync=fsync)


def _key(resume_key: str | None) -> tuple[str, bool]:
    return resume_key or uuid.uuid4().hex[:16], resume_key is not None
