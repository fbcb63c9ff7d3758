"""`Frame.info`: what a frame is, in rows to print."""

from __future__ import annotations

import reprlib
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.compression import cparams_of
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.labels.labels import PACKING
from b2nd_dask.format.labels.unpack import unpack_labels
from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.chunk_table import (
    ONE_VALUE,
    ChunkTable,
    chunk_table,
    most_headers,
    superseded_in,
)
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.sizes import decimal

#: Kinds of chunks, as texts and pictures name them.
KIND_NAMES = {
    ChunkKind.STORED: "stored",
    ChunkKind.ZEROS: "zeros",
    ChunkKind.NAN: "NaN",
    ChunkKind.UNINIT: "never written",
    ONE_VALUE: "one value",
}

_BY_INDEX = " (by the index; headers of chunks were not read)"

_CHECKSUMS = {
    ChecksumState.VALID: "present (not verified: `b2nd_dask.verify`)",
    ChecksumState.ABSENT: "absent: {}",
    ChecksumState.DAMAGED: "damaged: {}",
}

#: Of a terminal; paths and names are not broken.
_COLUMNS = 80

#: An entry of vlmeta that unpacks to more is not decoded to be shown.
_MOST_SHOWN = 1 << 20


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
        lines = textwrap.TextWrapper(
            _COLUMNS,
            subsequent_indent=" " * (width + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(
            lines.fill(f"{name:<{width}}  {text}") for name, text in self._rows.items()
        )


def info_of(reference: FrameReference) -> FrameInfo:
    """Describe a frame by its metadata."""
    return FrameInfo(dict(_rows(reference)))


def _rows(reference: FrameReference) -> Iterator[tuple[str, str]]:
    parsed = reference.parsed
    yield "path", reference.location.label
    yield "shape", lengths_text(reference.shape)
    dims = dims_of(reference)
    if dims is not None:
        yield "dims", ", ".join(map(_plain, dims))
    yield "dtype", str(reference.dtype)
    yield (
        "chunks",
        f"{lengths_text(reference.chunks)}, in a grid of {lengths_text(reference.grid.counts)}",
    )
    yield "blocks", lengths_text(reference.blocks)
    cbytes = parsed.header.cbytes
    ratio = f" (ratio {ratio_text(reference.nbytes / cbytes)})" if cbytes else ""
    yield "size", f"{decimal(reference.nbytes)} as an array, {decimal(cbytes)} compressed{ratio}"
    yield from _rows_of_chunks(reference)
    yield "layout", "sparse" if parsed.header.sparse else "contiguous"
    yield "codec", codec_text(reference)
    yield "filters", filters_text(reference)
    yield "checksums", checksums_text(reference)
    if reference.statistics is not None:
        yield "statistics", statistics_text(reference.statistics)
    for title, layer in (("metalayer", reference.meta), ("vlmeta", reference.vlmeta)):
        for name in layer:
            yield f"{title} {name!r}", value_text(layer, name)


def _rows_of_chunks(reference: FrameReference) -> Iterator[tuple[str, str]]:
    """What the headers of the chunks say, where these are not too many or far away."""
    by_index = _kinds_text(reference.chunk_kinds())
    if not reference.parsed.index.nstored:
        yield "chunk kinds", by_index
        return
    try:
        table = chunk_table(reference, most_headers(reference))
    except (B2ndError, OSError) as error:
        yield "chunk kinds", by_index + _BY_INDEX
        yield "chunk sizes", f"(cannot be shown: {getattr(error, 'problem', error)})"
        return
    # the index calls a chunk of one value stored, which only the chunk's header tells apart
    yield "chunk kinds", _kinds_text(table.kinds) if table.is_exact else by_index + _BY_INDEX
    counts = table.counts
    special = table.kinds.size - counts.get(ChunkKind.STORED, 0)
    if special:
        values = counts.get(ONE_VALUE, 0)
        of_these = f", {values} of them one value" if values else ""
        share = f"{100 * special / table.kinds.size:.3g} %"
        yield "special chunks", f"{special} of {table.kinds.size} ({share}){of_these}"
    if len(table.nbytes):
        yield "chunk sizes", sizes_text(table)
    superseded = superseded_in(reference, table)
    if superseded:
        yield "superseded", f"{decimal(superseded)}, which `b2nd_dask.compact` gives back"


def sizes_text(table: ChunkTable) -> str:
    """Compressed sizes of the smallest, the median and the largest chunk that has data."""
    nbytes = table.nbytes[table.data] if table.data.any() else table.nbytes
    low, median, high = (int(n) for n in np.quantile(nbytes, [0, 0.5, 1], method="lower"))
    bound = "" if table.is_exact else ", at most"
    if low == high:
        return f"{decimal(low)} each{bound}"
    return f"{decimal(low)} to {decimal(high)}, median {decimal(median)}{bound}"


def ratio_text(ratio: float) -> str:
    """A compression ratio with the digits that matter."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def dims_of(reference: FrameReference) -> tuple[str, ...] | None:
    """Names of the axes, if the entry `dims` of vlmeta has one for each."""
    if "dims" not in reference.vlmeta:
        return None
    try:
        dims = reference.vlmeta["dims"]
    except B2ndError:
        return None
    if not isinstance(dims, list | tuple) or len(dims) != reference.ndim:
        return None
    return tuple(dims) if all(isinstance(name, str) for name in dims) else None


def packing_of(reference: FrameReference) -> dict[str, Any]:
    """Attributes that say what else than its elements a frame is read as by xarray, by CF."""
    try:
        with warnings.catch_warnings():
            # of other attributes, which cannot be decoded
            warnings.simplefilter("ignore", UserWarning)
            attrs = unpack_labels(reference.vlmeta, reference.shape).labels.attrs
    except B2ndError:
        return {}
    found = {name: np.asarray(attrs[name]).tolist() for name in PACKING if name in attrs}
    # NaN stands for itself
    return {name: value for name, value in found.items() if value == value}


def codec_text(reference: FrameReference) -> str:
    """Codec and level that the frame names for its chunks."""
    how = cparams_of(reference.parsed.header.compression, reference.grid.itemsize)
    return f"{choice_name(how.codec)}, level {how.clevel}"


def filters_text(reference: FrameReference) -> str:
    """Filters that the frame names for its chunks."""
    how = cparams_of(reference.parsed.header.compression, reference.grid.itemsize)
    return ", ".join(name for name in map(choice_name, how.filters) if name != "nofilter") or "none"


def checksums_text(reference: FrameReference) -> str:
    """State of the frame's checksums."""
    integrity = reference.parsed.integrity
    return _CHECKSUMS[integrity.checksum_state].format(integrity.reason)


def statistics_text(statistics: ChunkStatistics) -> str:
    """How many chunks have statistics."""
    known, nchunks = int(np.count_nonzero(statistics.known)), len(statistics.known)
    return "of all chunks" if known == nchunks else f"of {known} of {nchunks} chunks"


def choice_name(choice: Any) -> str:
    """Name of a codec or filter; its number where python-blosc2 has no name for it."""
    return choice.name.lower() if isinstance(choice, Enum) else f"number {choice}"


def lengths_text(lengths: tuple[int, ...]) -> str:
    """A shape, as people write it."""
    return " x ".join(map(str, lengths)) or "0-d"


def _plain(name: str) -> str:
    """A name from a file without what acts on a terminal, and not too long."""
    shown = name if name.isprintable() else repr(name)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _kinds_text(kinds: NDArray[np.uint8]) -> str:
    return ", ".join(_kind_counts(kinds)) or "no chunks"


def _kind_counts(kinds: NDArray[np.uint8]) -> Iterator[str]:
    # of very many chunks that are all alike, one says all
    alike = kinds.size > 0 and not any(kinds.strides)
    looked_at = kinds.reshape(-1)[:1] if alike else kinds
    for kind, name in KIND_NAMES.items():
        count = np.count_nonzero(looked_at == kind) * (kinds.size if alike else 1)
        if count:
            yield f"{count} {name}"


def value_text(layer: MetaView, name: str, most: int = 200) -> str:
    """A text of an entry's value in one line of bounded length, or why there is none."""
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = most
    shown.maxlist = shown.maxtuple = shown.maxset = shown.maxdict = 20
    try:
        nbytes = layer.nbytes_of(name)
        if nbytes > _MOST_SHOWN:
            return f"({decimal(nbytes)}, not shown)"
        text = " ".join(shown.repr(layer[name]).split())
        return text if len(text) <= 4 * most else f"{text[: 4 * most]}..."
    except B2ndError as error:
        return f"(cannot be shown: {error.problem})"
