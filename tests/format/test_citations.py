"""What the code cites of docs/format.md is there, and what that page cites of the tests, too."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: A comment may break the line inside of a heading.
CITATION = re.compile(r"docs/format\.md, ((?:[A-Za-z-]+[ \n#:]*)+)")


def pages() -> list[Path]:
    folders = [ROOT / name for name in ("b2nd_dask", "tests", "benchmarks")]
    return [path for folder in folders for path in folder.rglob("*.py") if path != Path(__file__)]


def headings() -> set[str]:
    text = (ROOT / "docs/format.md").read_text()
    return set(re.findall(r"^##+ (.+)$", text, re.MULTILINE))


def cited(text: str) -> list[str]:
    """Headings that a text cites, as far as their words go."""
    joined = re.sub(r"\n\s*(#:?)?\s*", " ", text)
    return [words.strip() for words in CITATION.findall(joined)]


def test_cited_headings_exist() -> None:
    known = headings()
    found = {path: cited(path.read_text()) for path in pages()}
    assert sum(map(len, found.values())) >= 20
    missing = [
        (str(path.relative_to(ROOT)), words)
        for path, several in found.items()
        for words in several
        # the sentence may go on behind the heading
        if not any(re.match(rf"{re.escape(one)}\b", words) for one in known)
    ]
    assert not missing


def test_no_document_outside_of_the_repository_is_cited() -> None:
    pattern = re.compile(r"\bREFERENCE(\.md)? ?[0-9.]*[,)\d]")
    assert not [path for path in pages() if pattern.search(path.read_text())]


def test_cited_tests_and_files_exist() -> None:
    text = (ROOT / "docs/format.md").read_text()
    paths = set(re.findall(r"`(tests/[^`*]+)`", text)) | {
        f"docs/{name}" for name in re.findall(r"\]\(([a-z]+\.md)\)", text)
    }
    assert len(paths) > 15
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
