"""What is known of a frame without reading chunks, as values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.compact import superseded_nbytes
from b2nd_dask.frame.members.listing import Member

#: Headers of more chunks are not looked at to tell what `compact` would give back.
_MOST_HEADERS = 200_000


def facts_of(frame: Frame, path: str) -> dict[str, Any]:
    """Describe a frame: the keys are stable, sizes are bytes.

    Parameters
    ----------
    path : str
        As the user named it.
    """
    parsed = reference_of(frame).parsed
    how = frame.cparams
    return {
        "path": frame.path,
        "kind": "frame",
        "shape": list(frame.shape),
        "dims": dims_of(frame),
        "dtype": frame.dtype.str if frame.dtype.names is None else str(frame.dtype),
        "chunks": list(frame.chunks),
        "blocks": list(frame.blocks),
        "chunk_grid": list(frame.chunk_kinds().shape),
        "nchunks": frame.nchunks,
        "chunk_kinds": kind_counts(frame),
        "nbytes": frame.nbytes,
        "cbytes": frame.cbytes,
        "ratio": frame.cratio if frame.cbytes else None,
        "superseded_nbytes": superseded(frame, path),
        "layout": "contiguous" if frame.contiguous else "sparse",
        "codec": _name(how.codec),
        "clevel": int(how.clevel),
        "filters": [name for name in map(_name, how.filters) if name != "nofilter"],
        "checksums": {
            "state": parsed.integrity.checksum_state.value,
            "reason": parsed.integrity.reason or None,
        },
        "metalayers": _values(frame.meta),
        "attributes": _values(frame.attrs),
    }


def facts_of_members(members: Sequence[Member], path: str) -> dict[str, Any]:
    """Describe a store by its members."""
    listed = [{"key": each.key, "what": each.what, "nbytes": each.nbytes} for each in members]
    return {"path": path, "kind": "store", "members": listed}


def dims_of(frame: Frame) -> list[str] | None:
    """Names of the axes where the frame has a valid list of them, as xarray reads it."""
    try:
        dims = frame.vlmeta["dims"]
    except (KeyError, B2ndError):
        return None
    if not isinstance(dims, list | tuple) or len(dims) != frame.ndim:
        return None
    return list(dims) if all(isinstance(dim, str) for dim in dims) else None


def kind_counts(frame: Frame) -> dict[str, int]:
    """How many chunks are of which kind."""
    kinds = frame.chunk_kinds()
    # of very many chunks that are all alike, one says all
    alike = kinds.size > 0 and not any(kinds.strides)
    counts = np.bincount(
        kinds.reshape(-1)[:1] if alike else kinds.reshape(-1), minlength=max(ChunkKind) + 1
    )
    each = kinds.size if alike else 1
    return {kind.name.lower(): int(counts[kind]) * each for kind in ChunkKind}


def superseded(frame: Frame, path: str) -> int | None:
    """About what `compact` would give back; None where that is not asked for, or cannot be told."""
    if reference_of(frame).parsed.index.nstored > _MOST_HEADERS:
        return None
    try:
        return superseded_nbytes(path)
    except (B2ndError, ValueError, OSError):
        # a URL, a member of a store, a damaged chunk: `verify` tells of that
        return None


def _name(choice: Any) -> str:
    return choice.name.lower() if isinstance(choice, Enum) else f"number {choice}"


def _values(layer: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in layer:
        try:
            found[name] = layer[name]
        except B2ndError as error:
            found[name] = f"(cannot be shown: {error.problem})"
    return found


def ratio_text(frame: Frame) -> str:
    """The ratio for people; a frame without chunks of data has none."""
    return f"{frame.cratio:.{1 if frame.cratio < 1000 else 0}f}" if frame.cbytes else "no data"


def grid_text(lengths: Sequence[int]) -> str:
    """Lengths along axes for people."""
    return " x ".join(map(str, lengths)) or "0-d"


def chunk_nbytes(frame: Frame) -> int:
    """Bytes of a whole chunk as an array."""
    return math.prod(frame.chunks) * frame.dtype.itemsize
