"""How frames and plans look in a notebook: HTML with a drawing of the chunks, without JavaScript.

`pages` makes the pages, `drawing` the picture of the chunk grid, `style` what they share. Nothing
of these raises: what cannot be shown says why. All text that comes from a file is escaped where it
is put into HTML, by `style` alone. `chunk_values` and `cells` are what maps of chunks show: here,
in a terminal and in plots.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from b2nd_dask.format.values import MetaView
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.info import FrameInfo
from b2nd_dask.frame.verify import Verification
from b2nd_dask.graph.plan.plan import Plan

#: Function of `pages` for the HTML representation of each class.
_PAGES: tuple[tuple[Any, str], ...] = (
    (Frame, "frame_html"),
    (FrameInfo, "info_html"),
    (MetaView, "meta_html"),
    (Verification, "verification_html"),
    (Plan, "plan_html"),
)


def install() -> None:
    """Give the classes of the layers below their `_repr_html_`, which these know nothing of."""
    for kind, maker in _PAGES:
        kind._repr_html_ = _page_by(maker)


def _page_by(maker: str) -> Callable[[Any], str]:
    def page(shown: Any) -> str:
        # imported when one is shown
        made: str = getattr(import_module(f"{__name__}.pages"), maker)(shown)
        return made

    return page
