"""Pages in HTML: a `Frame` beside the drawing of its chunks, tables, what `verify` found."""

from __future__ import annotations

import itertools
from html import escape

from b2nd_dask.edges.display.chunk_values import KINDS, legend
from b2nd_dask.edges.display.drawing import draw_chunks
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
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ChunkTable
from b2nd_dask.frame.info import FrameInfo, axis_names, known_chunks, layout_rows, value_text
from b2nd_dask.frame.sizes import decimal
from b2nd_dask.frame.verify import Verification
from b2nd_dask.graph.plan.plan import Plan, sections

#: Entries that are shown, and characters of one value.
_MOST_ENTRIES, _MOST_TEXT, _MOST_NAME = 100, 600, 80
#: What the first rows of the table, and the legend of the drawing say.
_TOLD_BESIDE = {"shape", "chunks", "blocks", "chunk kinds", "special chunks"}
#: Damaged chunks that are listed.
_MOST_LISTED = 100
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
    known, problem = known_chunks(reference)
    return "".join(
        [
            '<div class="b2nd-side"><div>',
            guarded(lambda: _layout(frame, known, problem)),
            "</div><div>",
            guarded(lambda: _drawing(frame, known)),
            "</div></div>",
            section("Values", "", guarded(lambda: _values(frame)), is_open=True),
            guarded(lambda: _entries("Attributes", frame.attrs)),
            guarded(lambda: _entries("Metalayers", frame.meta)) if frame.meta else "",
        ]
    )


def _layout(frame: Frame, known: ChunkTable, problem: str) -> str:
    """Lengths and sizes of array, chunk and block, and what else `Frame.info` says."""
    reference = reference_of(frame)
    block_nbytes = reference.grid.block_nbytes
    per_chunk = known.chunk_nbytes // block_nbytes if block_nbytes else 0
    rows = [
        ("shape", str(frame.shape), str(frame.chunks), str(frame.blocks)),
        ("bytes", decimal(frame.nbytes), decimal(known.chunk_nbytes), decimal(block_nbytes)),
        ("count", "", f"{frame.nchunks:,}", f"{per_chunk:,} per chunk" if per_chunk else ""),
    ]
    facts = layout_rows(reference, known, problem)
    others = [(name, text) for name, text in facts if name not in _TOLD_BESIDE]
    return table([*rows, *others], ("", "array", "chunk", "block"))


def _drawing(frame: Frame, known: ChunkTable) -> str:
    names = axis_names(reference_of(frame))
    picture, is_mixed = draw_chunks(known.kinds, frame.chunks, names)
    lines = []
    for code, text in legend(known.counts, known.kinds.size, is_mixed=is_mixed):
        lines.append(f'<span><i class="b2nd-{KINDS[code].css}"></i>{escape(text)}</span>')
    return f'{picture}<div class="b2nd-legend">{"".join(lines)}</div>'


def _values(frame: Frame) -> str:
    text = preview(frame)
    return paragraph(text) if text.startswith(("no", "not")) else preformatted(text)


def _entries(name: str, layer: MetaView) -> str:
    if not layer:
        return section(name, "(none)", "")
    return section(name, f"({len(layer)})", entries_table(layer), is_open=len(layer) <= _FEW)


def meta_html(layer: MetaView) -> str:
    """Show the entries of a metadata view, each with its value."""
    heading = title("Metadata", f"{len(layer)} {'entry' if len(layer) == 1 else 'entries'}")
    return page([heading, guarded(lambda: entries_table(layer))])


def entries_table(layer: MetaView) -> str:
    """A table of names and values, of the first entries where there are very many."""
    names = list(itertools.islice(layer, _MOST_ENTRIES))
    rows = [(_name(name), value_text(layer, name, _MOST_TEXT)) for name in names]
    left = len(layer) - len(names)
    return table(rows) + (paragraph(f"and {left} more") if left else "")


def info_html(info: FrameInfo) -> str:
    """Show `Frame.info` as a table."""
    rows = itertools.islice(info.items(), 2 * _MOST_ENTRIES)
    return page([guarded(lambda: table(rows))])


def plan_html(found: Plan) -> str:
    """Show a plan, each of its sections as a table."""
    return page(part for name, rows in sections(found) for part in (title(name), table(rows)))


def _name(name: str) -> str:
    shown = name if name.isprintable() else repr(name)
    return shown if len(shown) <= _MOST_NAME else f"{shown[: _MOST_NAME - 3]}..."


def verification_html(found: Verification) -> str:
    """Show the result first, then every damaged chunk."""
    return page([title("Verification", found.path), guarded(lambda: _verification(found))])


def _verification(found: Verification) -> str:
    look, word = _result(found)
    parts = [f'<span class="b2nd-mark b2nd-{look}">{escape(word)}</span>']
    rows = [
        ("checksums", found.checksum_state.value + (f": {found.reason}" if found.reason else "")),
        ("stored chunks", f"{found.nchunks:,} read and compared"),
        ("damaged", f"{len(found.bad):,}"),
    ]
    if found.checksum_state is ChecksumState.ABSENT and not found.bad:
        rows.append(("to do", "b2nd_dask.seal(path) adds checksums of the bytes as they are now"))
    parts.append(table(rows))
    if found.bad:
        listed = [
            ("?" if error.chunk is None else f"{error.chunk:,}", type(error).__name__, str(error))
            for error in found.bad[:_MOST_LISTED]
        ]
        left = len(found.bad) - len(listed)
        more = paragraph(f"and {left:,} more, in the attribute `bad`") if left else ""
        body = table(listed, ("chunk", "error", "what is wrong")) + more
        parts.append(section("Damaged chunks", f"({len(found.bad):,})", body, is_open=True))
    return "".join(parts)


def _result(found: Verification) -> tuple[str, str]:
    if found.bad or found.checksum_state is ChecksumState.DAMAGED:
        return "bad", "\u2717 damaged"
    if found.ok:
        return "good", "\u2713 verified: as it was written"
    return "warn", "? no valid checksums: nothing to compare with"
