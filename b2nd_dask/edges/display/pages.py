"""HTML pages: a `Frame` with its chunks and corners, metadata, plans, results of `verify`."""

from __future__ import annotations

import itertools
import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import (
    KINDS,
    ChunkValues,
    chunk_values,
    layout_for,
    layout_text,
)
from b2nd_dask.edges.display.style import guarded, page, paragraph, section, table, title
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.checksums import Verification, lacks_checksums
from b2nd_dask.frame.chunk_table import ChunkTable
from b2nd_dask.frame.info import (
    FrameInfo,
    axis_names,
    decimal,
    known_chunks,
    layout_rows,
    lengths_text,
    short_name,
    value_text,
)
from b2nd_dask.frame.read.read_cost import Region
from b2nd_dask.graph.plan.plan import Plan, sections

#: Most entries of a table, and most characters of a value and of a name.
_MOST_ENTRIES, _MOST_TEXT, _MOST_NAME = 100, 600, 80
#: Facts of the first rows of the table and of the legend, which the other rows do not repeat.
_SHOWN_ABOVE = {"shape", "chunks", "blocks", "chunk kinds", "special chunks"}
#: Most damaged chunks to list.
_MOST_LISTED = 100
#: The section of attributes is open if there are at most this many.
_FEW = 4


def frame_html(frame: Frame) -> str:
    """Show a frame; for a closed one only shape, chunks and dtype."""
    heading = title("Frame", frame.path, *(["(closed)"] if frame.closed else []))
    if frame.closed:
        rows = [(name, str(getattr(frame, name))) for name in ("shape", "chunks", "dtype")]
        return page([heading, table(rows)])
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
            section(
                "Values", "", guarded(lambda: f"<pre>{escape(preview(frame))}</pre>"), is_open=True
            ),
            guarded(lambda: _entries("Attributes", frame.attrs)),
            guarded(lambda: _entries("Metalayers", frame.meta)) if frame.meta else "",
        ]
    )


def _layout(frame: Frame, known: ChunkTable, problem: str) -> str:
    """Lengths and sizes of array, chunk and block, and the other facts of `Frame.info`."""
    reference = reference_of(frame)
    block_nbytes = reference.grid.block_nbytes
    per_chunk = known.chunk_nbytes // block_nbytes if block_nbytes else 0
    rows = [
        ("shape", str(frame.shape), str(frame.chunks), str(frame.blocks)),
        ("bytes", decimal(frame.nbytes), decimal(known.chunk_nbytes), decimal(block_nbytes)),
        ("count", "", f"{frame.nchunks:,}", f"{per_chunk:,} per chunk" if per_chunk else ""),
    ]
    facts = layout_rows(reference, known, problem)
    others = [(name, text) for name, text in facts if name not in _SHOWN_ABOVE]
    return table([*rows, *others], ("", "array", "chunk", "block"))


def _drawing(frame: Frame, known: ChunkTable) -> str:
    values = chunk_values(frame, "kind", known)
    return draw_chunks(values, frame.chunks, axis_names(reference_of(frame)))


def _entries(name: str, layer: MetaView) -> str:
    if not layer:
        return section(name, "(none)", "")
    return section(name, f"({len(layer)})", entries_table(layer), is_open=len(layer) <= _FEW)


def meta_html(layer: MetaView) -> str:
    """Show the entries of a metadata view, each with its value."""
    heading = title("Metadata", f"{len(layer)} {'entry' if len(layer) == 1 else 'entries'}")
    return page([heading, guarded(lambda: entries_table(layer))])


def entries_table(layer: MetaView) -> str:
    """A table of names and values: at most the first `_MOST_ENTRIES`."""
    names = list(itertools.islice(layer, _MOST_ENTRIES))
    rows = [(short_name(name, _MOST_NAME), value_text(layer, name, _MOST_TEXT)) for name in names]
    left = len(layer) - len(names)
    return table(rows) + (paragraph(f"and {left} more") if left else "")


def info_html(info: FrameInfo) -> str:
    """Show `Frame.info` as a table."""
    rows = itertools.islice(info.items(), 2 * _MOST_ENTRIES)
    return page([guarded(lambda: table(rows))])


def plan_html(found: Plan) -> str:
    """Show a plan, one table per section."""
    return page(part for name, rows in sections(found) for part in (title(name), table(rows)))


def verification_html(found: Verification) -> str:
    """Show the result, then the damaged chunks."""
    return page([title("Verification", found.path), guarded(lambda: _verification(found))])


def _verification(found: Verification) -> str:
    look, word = "bad", "\u2717 damaged"
    if found.ok:
        look, word = "good", "\u2713 verified: as it was written"
    elif lacks_checksums(found):
        look, word = "warn", "? no valid checksums: nothing to compare with"
    parts = [f'<span class="b2nd-mark b2nd-{look}">{escape(word)}</span>']
    rows = [
        ("checksums", found.checksum_state.value + (f": {found.reason}" if found.reason else "")),
        ("stored chunks", f"{found.nchunks:,} read and compared"),
        ("damaged", f"{len(found.bad):,}"),
    ]
    if found.bad_statistics:
        rows.append(("statistics", f"damaged: {found.bad_statistics}; add_stats writes them again"))
    if lacks_checksums(found):
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


#: Most cells down and across, and the width of a picture in pixels.
_ROWS, _COLUMNS, _LONG = 40, 64, 280
#: Least and greatest height of a picture of width 1; the height of chunks is clipped to them.
_FLAT, _TALL = 0.1, 1.0


def draw_chunks(values: ChunkValues, chunks: tuple[int, ...], names: tuple[str, ...]) -> str:
    """Draw the chunks of an array in the colours of their kinds, with a legend.

    `chunks` are the lengths of a chunk, `names` the names of the axes.
    """
    grid = values.codes.shape
    if not values.codes.size:
        return paragraph("no chunks")
    layout = layout_for(grid, _ROWS, _COLUMNS)
    codes = layout.kinds(values.codes)[layout.gap[0] :]
    rows, columns = codes.shape
    tall = np.clip(rows / columns * layout.cell_height(chunks), _FLAT, _TALL)
    size = f'width="{_LONG}" height="{_LONG * tall:.0f}" viewBox="0 0 {columns} {rows}"'
    label = f"grid of {lengths_text(grid)} chunks"
    paths = []
    for code, kind in KINDS.items():
        cells = np.argwhere(codes == code).tolist()
        if cells:
            boxes = "".join(f"M{column},{row}h1v1h-1z" for row, column in cells)
            paths.append(f'<path class="b2nd-{kind.css}" d="{boxes}"/>')
    svg = f'<svg role="img" aria-label="{label}" {size} preserveAspectRatio="none">'
    lines = (
        f'<span><i class="b2nd-{KINDS[code].css}"></i>{escape(text)}</span>'
        for code, text in values.legend(codes)
    )
    legend = f'<div class="b2nd-legend">{"".join(lines)}</div>'
    return f"{svg}{''.join(paths)}</svg>{paragraph(layout_text(names, layout))}{legend}"


#: Most bytes to fetch and to decode for a preview.
MOST_FETCHED, MOST_DECODED = 1 << 20, 8 << 20
#: Elements to show at each end of an axis.
_ENDS = 3
#: Most characters of an element.
_MOST_ELEMENT = 20
_DOTS = "\u2026"


def preview(frame: Frame) -> str:
    """Elements at the corners of the array's first plane, as lines of text.

    Returns
    -------
    str
        The reason instead, if the elements are in a store, or too many bytes would be read.
    """
    if not frame.size:
        return "no elements"
    reference = reference_of(frame)
    # fewer axes than two get axes of length 1 in front
    shape = (1,) * (2 - frame.ndim) + frame.shape
    corners = _corners(shape)
    if math.prod(map(len, corners)) * frame.dtype.itemsize > MOST_FETCHED:
        return "not read, since its elements are large"
    regions = [region[len(shape) - frame.ndim :] for region in itertools.product(*corners)]
    costs = reference.read_costs(list(map(Region, regions)))
    if reference.is_remote and costs.visits:
        return "not read, since the frame is in a store"
    fetched = int(costs.fetched.sum())
    decoded = costs.blocks * reference.grid.block_nbytes
    if fetched > MOST_FETCHED or decoded > MOST_DECODED:
        return f"not read, since {decoded:,} bytes would have to be decoded"
    planes = [np.atleast_2d(reference.read_axes(region)) for region in regions]
    parts = [plane.reshape(plane.shape[-2:]) for plane in planes]
    columns = len(corners[-1])
    joined = np.block([parts[at : at + columns] for at in range(0, len(parts), columns)])
    where = [f"[{'0, ' * (frame.ndim - 2)}:, :]"] if frame.ndim > 2 else []
    return "\n".join([*where, *_lines(joined, shape)])


def _corners(shape: tuple[int, ...]) -> list[list[range]]:
    """Both ends of the last two axes, or all of a short axis; the first element of the others."""
    ends = [
        [range(n)] if n <= 2 * _ENDS + 1 else [range(_ENDS), range(n - _ENDS, n)]
        for n in shape[-2:]
    ]
    return [[range(1)]] * (len(shape) - 2) + ends


def _lines(elements: NDArray[Any], shape: tuple[int, ...]) -> list[str]:
    """Rows of elements as text, with dots for the elements left out."""
    texts = [[_element(value) for value in row] for row in elements]
    if shape[-2] > elements.shape[0]:
        texts.insert(_ENDS, [_DOTS] * len(texts[0]))
    width = max(len(text) for row in texts for text in row)
    lines = [[text.rjust(width) for text in row] for row in texts]
    if shape[-1] > elements.shape[1]:
        lines = [[*row[:_ENDS], _DOTS, *row[_ENDS:]] for row in lines]
    return ["  ".join(row) for row in lines]


def _element(value: Any) -> str:
    # times are never cut off: often only their ends differ
    if isinstance(value, np.datetime64):
        unit: Any = None if np.datetime_data(value.dtype)[0] in ("Y", "M") else "auto"
        return "NaT" if np.isnat(value) else str(np.datetime_as_string(value, unit=unit))
    if isinstance(value, np.timedelta64):
        return str(value)
    if isinstance(value, np.floating | np.complexfloating):
        text = f"{value:.6g}"
    else:
        text = str(value) if isinstance(value, np.number | np.bool_) else repr(value.item())
    return text if len(text) <= _MOST_ELEMENT else f"{text[: _MOST_ELEMENT - 1]}{_DOTS}"
