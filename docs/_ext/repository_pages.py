"""Pages of the repository that lie outside of docs/, as pages of the site.

Their links, and those of docs/ to them, are written for whoever reads the files where they lie. At
each build they are copied into docs/ under the names below, and all links are made to fit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
#: Where a page lies in the repository, and where in docs/ (both without an entry stay).
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "benchmarks/ANALYST.md": "measured/analyst.md",
    "benchmarks/RESULTS.md": "measured/results.md",
    "benchmarks/LIMITS.md": "measured/limits.md",
    "benchmarks/DEFAULTS.md": "measured/defaults.md",
    "benchmarks/ABLATION.md": "measured/ablation.md",
    "benchmarks/GROWTH.md": "measured/growth.md",
    "benchmarks/scale/RESULTS.md": "measured/at-scale.md",
    "benchmarks/scale/NOTE.md": "measured/model.md",
}
# the target of a Markdown link or picture, but no address and no anchor of the page itself
_TARGET = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
# the first lines of a fenced block, and what is in it
_FENCED = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def _pages() -> dict[str, str]:
    notebooks = (path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    return PAGES | {f"notebooks/{name}": f"notebooks/{name}" for name in notebooks}


def fitted(text: str, lies: str, shown: str) -> str:
    """Text with the links that lead from its page in the repository to the same on the site.

    Parameters
    ----------
    text : str
        Markdown.
    lies : str
        Where the page lies, from the root of the repository.
    shown : str
        Where its copy lies, from docs/.
    """
    pages = _pages()

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(Path(lies).parent / found[1])
        path = DOCS / pages[target] if target in pages else ROOT / target
        return f"]({os.path.relpath(path, (DOCS / shown).parent)}{found[2] or ''})"

    # code is left as it is
    parts, at = [], 0
    for block in _FENCED.finditer(text):
        parts += [_TARGET.sub(link, text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, _TARGET.sub(link, text[at:])])


def _copy_pages(app: Sphinx, config: Config) -> None:
    for lies, shown in _pages().items():
        text = (ROOT / lies).read_text(encoding="utf-8")
        if lies.endswith(".md"):
            text = fitted(text, lies, shown)
        target = DOCS / shown
        target.parent.mkdir(exist_ok=True)
        # an unchanged page is not built anew
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def _fit_page(app: Sphinx, name: str, content: list[str]) -> None:
    path = f"{name}.md"
    if path not in _pages().values() and (DOCS / path).exists():
        content[0] = fitted(content[0], f"docs/{path}", path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("config-inited", _copy_pages)
    app.connect("source-read", _fit_page)
    return {"parallel_read_safe": True}
