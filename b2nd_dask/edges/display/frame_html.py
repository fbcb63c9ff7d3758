"""The page of a `Frame`: its layout beside the drawing of its chunks; values and attributes."""

from __future__ import annotations

from html import escape

from b2nd_dask.edges.display.drawing import draw_chunks
from b2nd_dask.edges.display.kinds import KINDS, MIXED
from b2nd_dask.edges.display.meta_html import entries_table
from b2nd_dask.edges.display.preview import preview
from b2nd_dask.edges.display.style import (
    guarded,
    page,
    paragraph,
    preformatted,
    section,
    table,
    title,
)
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table, most_headers, superseded_in
from b2nd_dask.frame.info import (
    checksums_text,
    codec_text,
    dims_of,
    filters_text,
    ratio_text,
    sizes_text,
    statistics_text,
)
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.sizes import decimal

#: Attributes are shown at once where there are few.
_FEW = 4


def frame_html(frame: Frame) -> str:
    """Show a frame; a closed one by what remains of it."""
    heading = title("Frame", frame.path, *(["(closed)"] if frame.closed else []))
    if frame.closed:
        rows = [("shape", str(frame.shape)), ("chunks", str(frame.chunks))]
        return page([heading, table([*rows, ("dtype", str(frame.dtype))])])
    return page([heading, guarded(lambda: _body(frame))])


def _body(frame: Frame) -> str:
    reference = reference_of(frame)
    try:
        found = chunk_table(reference, most_headers(reference))
    except (B2ndError, OSError):
        # it was changed or removed: what was read when it was opened is known still
        found = chunk_table(reference, 0)
    return "".join(
        [
            '<div class="b2nd-side"><div>',
            guarded(lambda: _layout(frame, reference, found)),
            "</div><div>",
            guarded(lambda: _drawing(frame, reference, found)),
            "</div></div>",
            section("Values", "", guarded(lambda: _values(frame)), is_open=True),
            guarded(lambda: _entries("Attributes", frame.attrs)),
            guarded(lambda: _entries("Metalayers", frame.meta)) if frame.meta else "",
        ]
    )


def _layout(frame: Frame, reference: FrameReference, found: ChunkTable) -> str:
    itemsize = frame.dtype.itemsize
    block_nbytes = reference.grid.block_nbytes
    per_chunk = found.chunk_nbytes // block_nbytes if block_nbytes else 0
    stored = len(found.stored)
    rows = [
        ("shape", str(frame.shape), str(frame.chunks), str(frame.blocks)),
        ("bytes", decimal(frame.nbytes), decimal(found.chunk_nbytes), decimal(block_nbytes)),
        ("count", "", f"{frame.nchunks:,}", f"{per_chunk:,} per chunk" if per_chunk else ""),
    ]
    ratio = f", ratio {ratio_text(frame.cratio)}" if frame.cbytes else ""
    facts: list[tuple[str, ...]] = [("compressed", f"{decimal(frame.cbytes)}{ratio}")]
    dims = dims_of(reference)
    if dims is not None:
        facts.insert(0, ("dims", ", ".join(dims)))
    if len(found.nbytes):
        facts.append(("chunk sizes", sizes_text(found)))
    width = f"{frame.dtype} ({itemsize} byte{'s' * (itemsize != 1)})"
    layout = "one file" if frame.contiguous else f"sparse, {stored:,} files of chunks"
    facts += [
        ("dtype", width),
        ("codec", f"{codec_text(reference)}; filters: {filters_text(reference)}"),
        ("layout", layout),
        ("checksums", _checksums(reference)),
    ]
    if reference.statistics is not None:
        facts.append(("statistics", statistics_text(reference.statistics)))
    superseded = superseded_in(reference, found)
    if superseded:
        facts.append(("superseded", f"{decimal(superseded)}; compact(path) gives them back"))
    return table([*rows, *facts], ("", "array", "chunk", "block"))


def _checksums(reference: FrameReference) -> str:
    if reference.parsed.integrity.checksum_state is ChecksumState.VALID:
        return "present; verify(path) compares all chunks with them"
    return checksums_text(reference)


def _drawing(frame: Frame, reference: FrameReference, found: ChunkTable) -> str:
    names = dims_of(reference) or tuple(f"axis {axis}" for axis in range(frame.ndim))
    picture = draw_chunks(found.kinds, frame.shape, frame.chunks, names)
    return f"{picture}{_legend(found, 'several' in picture or 'b2nd-mixed' in picture)}"


def _legend(found: ChunkTable, has_mixed: bool) -> str:
    total = max(found.kinds.size, 1)
    lines = []
    for code, kind in KINDS.items():
        count = found.counts.get(code, 0)
        note = f"{count:,} ({100 * count / total:.3g} %)" if code != MIXED else ""
        if count or (code == MIXED and has_mixed):
            swatch = f'<i class="b2nd-{kind.css}"></i>'
            lines.append(f"<span>{swatch}{escape(f'{kind.name} {note}'.strip())}</span>")
    return f'<div class="b2nd-legend">{"".join(lines)}</div>'


def _values(frame: Frame) -> str:
    text = preview(frame)
    return paragraph(text) if text.startswith(("no", "not")) else preformatted(text)


def _entries(name: str, layer: MetaView) -> str:
    if not layer:
        return section(name, "(none)", "")
    return section(name, f"({len(layer)})", entries_table(layer), is_open=len(layer) <= _FEW)
