"""Elements of all HTML pages: the style sheet, tables, sections that fold, and the escaping.

Text and lines have the colours of the page, which suits any theme, even an unknown one. The colours
of chunks are legible on white and on black; known dark themes get lighter ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from b2nd_dask.edges.display.chunk_values import KINDS, Kind

#: `light-dark` follows the `color-scheme` of the page. The last rule sets it in the dark themes of
#: JupyterLab, VS Code and Sphinx.
_SHEET = """
.b2nd{color:inherit;background:transparent;font-size:13px;line-height:1.45;max-width:66em;
text-align:left}
.b2nd *{box-sizing:border-box}
.b2nd .b2nd-title{font-family:monospace;padding-bottom:4px;margin-bottom:6px;
border-bottom:1px solid rgba(128,128,128,.5);overflow-wrap:anywhere}
.b2nd .b2nd-title b{font-weight:600}
.b2nd .b2nd-soft{opacity:.7}
.b2nd .b2nd-side{display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start}
.b2nd table{border-collapse:collapse!important;border:none!important;margin:0 0 4px!important;
color:inherit!important;background:transparent!important;font-size:inherit!important;
font-variant-numeric:tabular-nums;table-layout:auto!important}
.b2nd .b2nd-side table{max-width:36em!important}
.b2nd .b2nd-side>:last-child{max-width:280px}
.b2nd .b2nd-side td{overflow-wrap:break-word}
.b2nd tr{background:transparent!important}
.b2nd th,.b2nd td{color:inherit!important;text-align:left!important;vertical-align:top!important;
padding:2px 14px 2px 0!important;border:none!important;background:transparent!important;
border-bottom:1px solid rgba(128,128,128,.25)!important;max-width:44em!important;
white-space:normal!important;overflow-wrap:anywhere}
.b2nd th{font-weight:600!important;white-space:nowrap!important}
.b2nd tr:last-child>*{border-bottom:none!important}
.b2nd details{margin:2px 0}
.b2nd summary{cursor:pointer;font-weight:600;padding:2px 0}
.b2nd summary span{font-weight:normal;opacity:.7}
.b2nd details>:not(summary){margin-left:16px!important}
.b2nd pre{margin:2px 0;padding:0;background:transparent;color:inherit;font-size:12px;
overflow-x:auto;white-space:pre}
.b2nd svg{display:block;max-width:100%}
.b2nd svg path{stroke:currentColor;stroke-opacity:.3;stroke-width:.6;
vector-effect:non-scaling-stroke}
.b2nd .b2nd-legend{display:flex;flex-wrap:wrap;gap:0 14px;margin-top:6px}
.b2nd .b2nd-legend span{white-space:nowrap}
.b2nd .b2nd-legend i{display:inline-block;width:10px;height:10px;margin-right:5px;
border:1px solid rgba(128,128,128,.6)}
.b2nd .b2nd-mark{display:inline-block;margin-bottom:5px;
padding:0 7px;border-radius:3px;font-weight:600;
border:1.5px solid}
.b2nd .b2nd-good{color:light-dark(#00724c,#3ecf9b)}
.b2nd .b2nd-bad{color:light-dark(#b23a00,#ff8a4c)}
.b2nd .b2nd-warn{color:light-dark(#8a6100,#f0b93a)}
body[data-jp-theme-light="false"] .b2nd,body.vscode-dark .b2nd,
body.vscode-high-contrast .b2nd,html[data-theme="dark"] .b2nd{color-scheme:dark}
"""


def _fill(kind: Kind) -> str:
    colour = f"light-dark({kind.light},{kind.dark})"
    return f".b2nd .b2nd-{kind.css}{{fill:{colour};background:{colour}}}"


_FILLS = "".join(map(_fill, KINDS.values()))
STYLE = f"<style>{_SHEET}{_FILLS}</style>".replace("\n", "")


def page(parts: Iterable[str]) -> str:
    """A page as one element with its style sheet."""
    return f'{STYLE}<div class="b2nd">{"".join(parts)}</div>'


def title(name: str, *rest: str) -> str:
    """The first line: the kind of the object, then other text such as its path."""
    soft = "".join(f' <span class="b2nd-soft">{escape(text)}</span>' for text in rest)
    return f'<div class="b2nd-title"><b>{escape(name)}</b>{soft}</div>'


def table(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """A table of texts with the names of the rows in the first column.

    The last cell of a shorter row spans the missing columns; `head` has the names of the columns.
    """
    listed = list(rows)
    width = max([len(head), *map(len, listed)], default=0)
    lines = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>"] if head else []
    for name, *cells, last in listed:
        missing = width - 1 - len(cells)
        span = f' colspan="{missing}"' if missing > 1 else ""
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{escape(name)}</th>{data}<td{span}>{escape(last)}</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def section(name: str, note: str, body: str, *, is_open: bool = False) -> str:
    """A part of a page that folds."""
    mark = " open" if is_open else ""
    heading = f"<summary>{escape(name)} <span>{escape(note)}</span></summary>"
    return f"<details{mark}>{heading}<div>{body}</div></details>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f'<div class="b2nd-soft">{escape(text)}</div>'


def guarded(part: Callable[[], str]) -> str:
    """Make a part of a page; on an error return its text as the part."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001 - a damaged or vanished file must not break a repr
        return paragraph(f"(cannot be shown: {type(error).__name__}: {str(error)[:500]})")
