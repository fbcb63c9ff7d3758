"""What is known of a frame without reading chunks, as values for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from b2nd_dask.edges.cli.recorded import records_of
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import chunk_table, superseded_in
from b2nd_dask.frame.info import choice_name, dims_of
from b2nd_dask.frame.members.listing import Member
from b2nd_dask.frame.reference import FrameReference

_STATES = {ChecksumState.VALID: "present"}
#: Headers of more chunks are not looked at to tell what `compact` would give back.
_MOST_HEADERS = 200_000


def facts_of(frame: Frame) -> dict[str, Any]:
    """Describe a frame: the keys are stable, sizes are bytes."""
    reference = reference_of(frame)
    parsed, dims = reference.parsed, dims_of(reference)
    table = chunk_table(reference, most=0)
    how = frame.cparams
    return {
        "path": frame.path,
        "kind": "frame",
        "shape": list(frame.shape),
        "dims": None if dims is None else list(dims),
        "dtype": frame.dtype.str if frame.dtype.names is None else str(frame.dtype),
        "chunks": list(frame.chunks),
        "blocks": list(frame.blocks),
        "chunk_grid": list(table.kinds.shape),
        "nchunks": frame.nchunks,
        "chunk_kinds": {kind.name.lower(): table.counts.get(kind, 0) for kind in ChunkKind},
        "nbytes": frame.nbytes,
        "cbytes": frame.cbytes,
        "ratio": frame.cratio if frame.cbytes else None,
        "superseded_nbytes": superseded(reference),
        "layout": "contiguous" if frame.contiguous else "sparse",
        "codec": choice_name(how.codec),
        "clevel": int(how.clevel),
        "filters": [name for name in map(choice_name, how.filters) if name != "nofilter"],
        "checksums": {
            # only `verify` reads what they are of
            "state": _STATES.get(state := parsed.integrity.checksum_state, state.value),
            "reason": parsed.integrity.reason or None,
        },
        "statistics": records_of(frame),
        "metalayers": _values(frame.meta),
        "attributes": _values(frame.attrs),
    }


def facts_of_members(members: Sequence[Member], path: str) -> dict[str, Any]:
    """Describe a store by its members."""
    listed = [{"key": each.key, "what": each.what, "nbytes": each.nbytes} for each in members]
    return {"path": path, "kind": "store", "members": listed}


def superseded(reference: FrameReference) -> int | None:
    """About what `compact` would give back; None where that would take long, or cannot be told."""
    try:
        return superseded_in(reference, chunk_table(reference, _MOST_HEADERS))
    except (B2ndError, OSError):
        # a damaged chunk: `verify` tells of that
        return None


def _values(layer: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in layer:
        try:
            found[name] = layer[name]
        except B2ndError as error:
            found[name] = f"(cannot be shown: {error.problem})"
    return found
