"""From a place to the staging that writes there."""

from __future__ import annotations

import os
import uuid

from b2nd_dask.storage.local_staging import ContiguousStaging, SparseStaging
from b2nd_dask.storage.location import Location
from b2nd_dask.storage.staging import Staging


def staging_for(location: Location, *, sparse: bool, replace: bool, header_len: int) -> Staging:
    """Choose how to write to a place.

    Parameters
    ----------
    location : Location
        A local path or a URL.
    sparse : bool
        Whether the frame is a directory of chunk files.
    replace : bool
        Whether a frame that is there may be replaced.
    header_len : int
        Bytes of the frame's header.

    Returns
    -------
    Staging

    Raises
    ------
    ValueError
        Nothing can be written there: bytes, or an offset inside a file.
    """
    if isinstance(location.urlpath, bytes) or location.offset:
        raise ValueError(f"{location.label}: a frame is written to a path or URL of its own")
    key = uuid.uuid4().hex[:12]
    target = os.path.realpath(location.urlpath)
    if sparse:
        return SparseStaging(target, replace, key)
    return ContiguousStaging(target, replace, key, header_len)
