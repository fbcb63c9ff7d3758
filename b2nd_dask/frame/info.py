"""Descriptions of a frame: `Frame.info` as a printable summary, and facts for programs."""

from __future__ import annotations

import reprlib
import textwrap
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.chunk.compression import cparams_of
from b2nd_dask.format.labels import PACKING, unpack_labels
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table, superseded_in
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.lazy import lazy

#: Names of chunk kinds in texts and pictures.
KIND_NAMES: dict[int, str] = {
    ChunkKind.STORED: "stored",
    ChunkKind.ZEROS: "zeros",
    ChunkKind.NAN: "NaN",
    ChunkKind.UNINIT: "never written",
    ChunkKind.ONE_VALUE: "one value",
}

_BY_INDEX = " (by the index; headers of chunks were not read)"

#: Most headers that `Frame.info` and the drawing of a frame read, at 20 microseconds each; fewer in
#: a sparse frame, where each is in its own file.
MOST_HEADERS, MOST_FILES = 10_000, 2_000
#: Most headers that `facts_of` reads, to find chunks of one value and superseded bytes.
_MOST_FOR_PROGRAMS = 200_000

#: Width of a terminal; paths and names are not wrapped.
_COLUMNS = 80

#: Entries of vlmeta that unpack to more bytes are not decoded for display.
_MOST_SHOWN = 1 << 20
#: Longer binary data is shown by its size only.
_MOST_BINARY = 64
_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


class FrameInfo(dict[str, str]):
    """Names and texts that describe a frame; prints as a table."""

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "info_html")

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = textwrap.TextWrapper(
            _COLUMNS,
            subsequent_indent=" " * (width + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(lines.fill(f"{name:<{width}}  {text}") for name, text in self.items())


def info_rows(reference: FrameReference) -> Iterator[tuple[str, str]]:
    """Describe a frame by its metadata."""
    yield "path", reference.location.label
    yield from layout_rows(reference, *known_chunks(reference))
    for title, layer in (("metalayer", reference.meta), ("vlmeta", reference.vlmeta)):
        for name in layer:
            yield f"{title} {name!r}", value_text(layer, name)


def known_chunks(reference: FrameReference, most: int | None = None) -> tuple[ChunkTable, str]:
    """Describe the chunks of a frame at low cost; also return why the description is partial.

    Reads at most `most` headers, by default as many as take no noticeable time.
    """
    limit = MOST_FILES if reference.parsed.header.sparse else MOST_HEADERS
    try:
        return chunk_table(reference, limit if most is None else most), ""
    except (B2ndError, OSError) as error:
        # the frame is damaged, changed or removed: use the metadata that was read at its opening
        return chunk_table(reference, 0), f"(cannot be shown: {getattr(error, 'problem', error)})"


def layout_rows(
    reference: FrameReference, table: ChunkTable, problem: str = ""
) -> Iterator[tuple[str, str]]:
    """Describe layout and compression of a frame, from the result of `known_chunks`."""
    header = reference.parsed.header
    yield "shape", lengths_text(reference.shape)
    dims = dims_of(reference)
    if dims is not None:
        yield "dims", ", ".join(map(short_name, dims))
    yield "dtype", str(reference.dtype)
    yield (
        "chunks",
        f"{lengths_text(reference.chunks)}, in a grid of {lengths_text(reference.grid.counts)}",
    )
    yield "blocks", lengths_text(reference.blocks)
    cbytes = header.cbytes
    ratio = f" (ratio {ratio_text(reference.nbytes / cbytes)})" if cbytes else ""
    yield "size", f"{decimal(reference.nbytes)} as an array, {decimal(cbytes)} compressed{ratio}"
    yield from _rows_of_chunks(reference, table, problem)
    files = f"sparse, {len(table.stored):,} file{'s' * (len(table.stored) != 1)} of chunks"
    yield "layout", files if header.sparse else "contiguous"
    cparams = cparams_of(header.compression, reference.grid.itemsize)
    yield "codec", f"{choice_name(cparams.codec)}, level {cparams.clevel}"
    yield "filters", ", ".join(_filters(cparams)) or "none"
    checksums = reference.parsed.columns.checksums
    present = "present (not verified: `b2nd_dask.verify`)"
    problem = f"{checksums.state.value}: {checksums.reason}"
    yield "checksums", present if checksums.is_valid else problem
    if reference.parsed.statistics is not None:
        records = records_of(reference)
        count, of = records["chunks"], records["of"]
        yield "statistics", "of all chunks" if count == of else f"of {count} of {of} chunks"


def _rows_of_chunks(
    reference: FrameReference, table: ChunkTable, problem: str
) -> Iterator[tuple[str, str]]:
    counts = table.counts
    kinds = ", ".join(
        f"{counts[kind]} {name}" for kind, name in KIND_NAMES.items() if kind in counts
    )
    # the index lists a chunk of one value as stored; only the chunk's header marks it
    yield "chunk kinds", (kinds or "no chunks") + _BY_INDEX * (not table.is_exact)
    special = table.kinds.size - counts.get(ChunkKind.STORED, 0)
    if special and counts.get(ChunkKind.STORED):
        values = counts.get(ChunkKind.ONE_VALUE, 0)
        of_these = f", {values} of them one value" if values else ""
        share = f"{100 * special / table.kinds.size:.3g} %"
        yield "special chunks", f"{special} of {table.kinds.size} ({share}){of_these}"
    if problem or len(table.nbytes):
        yield "chunk sizes", problem or _sizes_text(table)
    superseded = superseded_in(reference, table)
    if superseded:
        yield "superseded", f"{decimal(superseded)}, which `b2nd_dask.compact` frees"


def facts_of(reference: FrameReference) -> dict[str, Any]:
    """Describe a frame to programs: the keys are stable, sizes are bytes."""
    header, grid, dtype = reference.parsed.header, reference.grid, reference.dtype
    checksums, dims = reference.parsed.columns.checksums, dims_of(reference)
    table, _ = known_chunks(reference, _MOST_FOR_PROGRAMS)
    cparams = cparams_of(header.compression, grid.itemsize)
    return {
        "path": reference.location.label,
        "kind": "frame",
        "shape": list(reference.shape),
        "dims": None if dims is None else list(dims),
        "dtype": dtype.str if dtype.names is None else str(dtype),
        "chunks": list(reference.chunks),
        "blocks": list(reference.blocks),
        "chunk_grid": list(grid.counts),
        "nchunks": grid.nchunks,
        "chunk_kinds": {kind.name.lower(): table.counts.get(kind, 0) for kind in ChunkKind},
        "nbytes": reference.nbytes,
        "cbytes": header.cbytes,
        "ratio": reference.nbytes / header.cbytes if header.cbytes else None,
        "superseded_nbytes": superseded_in(reference, table),
        "layout": "sparse" if header.sparse else "contiguous",
        "codec": choice_name(cparams.codec),
        "clevel": int(cparams.clevel),
        "filters": _filters(cparams),
        "checksums": {
            # "present", not "valid": only `verify` compares them with the chunks
            "state": "present" if checksums.is_valid else checksums.state.value,
            "reason": checksums.reason or None,
        },
        "statistics": records_of(reference),
        "metalayers": _values(reference.meta),
        "attributes": _values(reference.vlmeta),
    }


def _values(layer: MetaView) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in layer:
        try:
            found[name] = layer[name]
        except B2ndError as error:
            found[name] = f"(cannot be shown: {error.problem})"
    return found


def records_of(reference: FrameReference) -> dict[str, int]:
    """Number of chunks with statistics, number of all chunks, and bytes of the statistics."""
    columns, nchunks = reference.parsed.columns, reference.grid.nchunks
    if columns.entry is None or columns.statistics is None:
        return {"chunks": 0, "of": nchunks, "nbytes": 0}
    known = int(np.count_nonzero(columns.statistics.known))
    return {"chunks": known, "of": nchunks, "nbytes": len(columns.entry)}


def _sizes_text(table: ChunkTable) -> str:
    """Compressed sizes of the smallest, the median and the largest chunk with data."""
    nbytes = table.nbytes[table.data] if table.data.any() else table.nbytes
    low, median, high = (int(n) for n in np.quantile(nbytes, [0, 0.5, 1], method="lower"))
    bound = "" if table.is_exact else ", at most"
    if low == high:
        return f"{decimal(low)} each{bound}"
    return f"{decimal(low)} to {decimal(high)}, median {decimal(median)}{bound}"


def ratio_text(ratio: float) -> str:
    """Format a compression ratio with its significant digits."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def dims_of(reference: FrameReference) -> tuple[str, ...] | None:
    """Names of the axes, if the entry `dims` of vlmeta has one for each."""
    try:
        dims = reference.vlmeta.get("dims")
    except B2ndError:
        return None
    if not isinstance(dims, list | tuple) or len(dims) != reference.ndim:
        return None
    return tuple(dims) if all(isinstance(name, str) for name in dims) else None


def axis_names(reference: FrameReference) -> tuple[str, ...]:
    """Names of the axes, or their numbers if they have no names."""
    return dims_of(reference) or tuple(f"axis {axis}" for axis in range(reference.ndim))


def packing_of(reference: FrameReference) -> dict[str, Any]:
    """CF attributes by which xarray unpacks the stored elements."""
    try:
        with warnings.catch_warnings():
            # warnings about other attributes that cannot be decoded
            warnings.simplefilter("ignore", UserWarning)
            attrs = unpack_labels(reference.vlmeta, reference.shape).attrs
    except B2ndError:
        return {}
    found = {name: np.asarray(attrs[name]).tolist() for name in PACKING if name in attrs}
    # omit NaN, which needs no conversion
    return {name: value for name, value in found.items() if value == value}


def _filters(cparams: Any) -> list[str]:
    return [name for name in map(choice_name, cparams.filters) if name != "nofilter"]


def choice_name(choice: Any) -> str:
    """Name of a codec or filter; its number if python-blosc2 has no name for it."""
    return choice.name.lower() if isinstance(choice, Enum) else f"number {choice}"


def lengths_text(lengths: tuple[int, ...]) -> str:
    """Format a shape for readers."""
    return " x ".join(map(str, lengths)) or "0-d"


def short_name(name: str, most: int = 40) -> str:
    """Shorten a name from a file, and remove terminal control characters."""
    shown = name if name.isprintable() else repr(name)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def value_text(layer: MetaView, name: str, most: int = 200) -> str:
    """Format an entry's value in one line of bounded length, or explain why that fails."""
    try:
        nbytes = layer.nbytes_of(name)
        if nbytes > _MOST_SHOWN:
            return f"({decimal(nbytes)}, not shown)"
        return one_line(layer[name], most)
    except B2ndError as error:
        return f"(cannot be shown: {error.problem})"


def one_line(value: Any, most: int = 200) -> str:
    """Format a value in one line of bounded length."""
    shown = _Line()
    shown.maxstring = shown.maxother = most
    shown.maxlist = shown.maxtuple = shown.maxset = shown.maxdict = 20
    text = " ".join(shown.repr(value).split())
    return text if len(text) <= 4 * most else f"{text[: 4 * most]}..."


class _Line(reprlib.Repr):
    def repr_bytes(self, value: bytes, level: int) -> str:
        text = bytes_text(value)
        return text if len(text) <= self.maxother else self.repr_instance(value, level)


def bytes_text(value: bytes) -> str:
    """Format bytes as Python does; long binary data, such as a coordinate, by its size."""
    is_text = value.isascii() and value.decode().isprintable()
    return repr(value) if is_text or len(value) <= _MOST_BINARY else f"<{decimal(len(value))}>"


def decimal(nbytes: int) -> str:
    """Format a number of bytes in units of 1000, with one decimal.

    Examples
    --------
    >>> decimal(1), decimal(999), decimal(12_345), decimal(933_120_000)
    ('1 byte', '999 bytes', '12.3 kB', '933.1 MB')
    """
    if nbytes < 1000:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    value, units = nbytes / 1000, list(_UNITS)
    # a value that rounds to 1,000.0 belongs to the next unit
    while round(value, 1) >= 1000 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:,.1f} {units[0]}"
