"""Pages that are tables: `Frame.attrs`, `meta` and `vlmeta`, `Frame.info`, plans."""

from __future__ import annotations

import itertools

from b2nd_dask.edges.display.style import guarded, page, paragraph, table, title
from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.info import FrameInfo, value_text
from b2nd_dask.graph.plan.plan import Plan, sections

#: Entries that are shown, and characters of one value.
_MOST_ENTRIES, _MOST_TEXT, _MOST_NAME = 100, 600, 80


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
