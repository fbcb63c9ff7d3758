"""`Frame.info`: what a frame is, in rows to print."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.compression import cparams_of
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.sizes import decimal

_KIND_NAMES = {
    ChunkKind.STORED: "stored",
    ChunkKind.ZEROS: "zeros",
    ChunkKind.NAN: "NaN",
    ChunkKind.UNINIT: "never written",
}

_CHECKSUMS = {
    ChecksumState.VALID: "present (not verified: `b2nd_dask.verify`)",
    ChecksumState.ABSENT: "absent: {}",
    ChecksumState.DAMAGED: "damaged: {}",
}

_VALUES = reprlib.Repr()
_VALUES.maxstring = _VALUES.maxother = 200
_VALUES.maxlist = _VALUES.maxdict = 20


class FrameInfo(Mapping[str, str]):
    """Names and texts that describe a frame; prints as a table."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> str:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        width = max(map(len, self._rows))
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self._rows.items())


def info_of(reference: FrameReference) -> FrameInfo:
    """Describe a frame by its metadata."""
    return FrameInfo(dict(_rows(reference)))


def _rows(reference: FrameReference) -> Iterator[tuple[str, str]]:
    kinds, parsed = reference.chunk_kinds(), reference.parsed
    yield "path", reference.location.label
    yield "shape", _lengths(reference.shape)
    yield "dtype", str(reference.dtype)
    yield "chunks", f"{_lengths(reference.chunks)}, in a grid of {_lengths(kinds.shape)}"
    yield "blocks", _lengths(reference.blocks)
    compressed = decimal(parsed.header.cbytes)
    yield "size", f"{decimal(reference.nbytes)} as an array, {compressed} compressed"
    yield "chunk kinds", ", ".join(_kind_counts(kinds)) or "no chunks"
    yield "layout", "sparse" if parsed.header.sparse else "contiguous"
    how = cparams_of(parsed.header.compression, reference.grid.itemsize)
    filters = [name for name in map(_name_of, how.filters) if name != "nofilter"]
    yield "codec", f"{_name_of(how.codec)}, level {how.clevel}"
    yield "filters", ", ".join(filters) or "none"
    integrity = parsed.integrity
    yield "checksums", _CHECKSUMS[integrity.checksum_state].format(integrity.reason)
    for title, layer in (("metalayer", reference.meta), ("vlmeta", reference.vlmeta)):
        for name in layer:
            yield f"{title} {name!r}", _value(layer, name)


def _name_of(choice: Any) -> str:
    """Name of a codec or filter; its number where python-blosc2 has no name for it."""
    return choice.name.lower() if isinstance(choice, Enum) else f"number {choice}"


def _lengths(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths)) or "0-d"


def _kind_counts(kinds: NDArray[np.uint8]) -> Iterator[str]:
    # of very many chunks that are all alike, one says all
    alike = kinds.size > 0 and not any(kinds.strides)
    looked_at = kinds.reshape(-1)[:1] if alike else kinds
    for kind, name in _KIND_NAMES.items():
        count = np.count_nonzero(looked_at == kind) * (kinds.size if alike else 1)
        if count:
            yield f"{count} {name}"


def _value(layer: Mapping[str, Any], name: str) -> str:
    try:
        return _VALUES.repr(layer[name])
    except B2ndError as error:
        return f"(cannot be shown: {error.problem})"
