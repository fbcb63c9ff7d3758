"""Names of the files in a sparse frame's directory (docs/format.md)."""

from __future__ import annotations

import re

#: Everything but the chunks.
MAIN_MEMBER = "chunks.b2frame"
#: Numbers end at 2**32 - 1.
CHUNK_MEMBER = re.compile(r"[0-9A-F]{8}\.chunk")


def chunk_member(number: int) -> str:
    """Name of a chunk file.

    Parameters
    ----------
    number : int
        As in the offset index.

    Examples
    --------
    >>> chunk_member(171)
    '000000AB.chunk'
    """
    return f"{number:08X}.chunk"


def is_member(name: str) -> bool:
    """Whether a sparse frame may have a file of this name; python-blosc2 adds .b2lock."""
    return name in (MAIN_MEMBER, ".b2lock") or CHUNK_MEMBER.fullmatch(name) is not None
