"""How frames and plans look in a notebook: HTML with a drawing of the chunks, without JavaScript.

`frame_html`, `meta_html` and `verification_html` make the pages, `drawing` the picture of the chunk
grid, `style` what they share. Nothing here raises: what cannot be shown says why. All text that
comes from a file is escaped where it is put into HTML, by `style` alone.
"""

from __future__ import annotations

from typing import Any

from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.info import FrameInfo
from b2nd_dask.frame.verify import Verification
from b2nd_dask.graph.plan.plan import Plan, sections


def install() -> None:
    """Give the classes of the layers below their `_repr_html_`, which these know nothing of."""
    makers: tuple[tuple[Any, Any], ...] = (
        (Frame, _frame),
        (FrameInfo, _info),
        (MetaView, _meta),
        (Verification, _verification),
        (Plan, _plan),
    )
    for kind, maker in makers:
        kind._repr_html_ = maker


# the pages are imported when one is shown


def _frame(frame: Frame) -> str:
    from b2nd_dask.edges.display.frame_html import frame_html

    return frame_html(frame)


def _info(info: FrameInfo) -> str:
    from b2nd_dask.edges.display.meta_html import info_html

    return info_html(info)


def _meta(layer: MetaView) -> str:
    from b2nd_dask.edges.display.meta_html import meta_html

    return meta_html(layer)


def _verification(found: Verification) -> str:
    from b2nd_dask.edges.display.verification_html import verification_html

    return verification_html(found)


def _plan(found: Plan) -> str:
    from b2nd_dask.edges.display.style import page, table, title

    return page(part for name, rows in sections(found) for part in (title(name), table(rows)))
