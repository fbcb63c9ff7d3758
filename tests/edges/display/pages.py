"""What a page of HTML holds, by Python's own parser."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"br", "hr", "img", "meta"}


class Page(HTMLParser):
    """Rows of tables, texts and elements of a page; raises for tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    @property
    def table(self) -> dict[str, list[str]]:
        """Cells behind the first of each row, by that; the first row of a name."""
        return {row[0]: row[1:] for row in reversed(self.rows)}

    @property
    def text(self) -> str:
        """All text, without tags."""
        return " ".join(self.texts)

    def paths(self, kind: str) -> str:
        """What the drawing fills in the colour of a kind."""
        found = [
            a.get("d") for tag, a in self.tags if tag == "path" and a["class"] == f"b2nd-{kind}"
        ]
        return "".join(path or "" for path in found)
