"""The page of what `verify` found."""

from __future__ import annotations

from html import escape

from b2nd_dask.edges.display.style import guarded, page, paragraph, section, table, title
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.verify import Verification

#: Damaged chunks that are listed.
_MOST_LISTED = 100


def verification_html(found: Verification) -> str:
    """Show the result first, then every damaged chunk."""
    return page([title("Verification", found.path), guarded(lambda: _body(found))])


def _body(found: Verification) -> str:
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
