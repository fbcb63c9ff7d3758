"""The argument `mode` of functions that write."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

#: Whether each mode that makes a new frame may replace one.
NEW = {"w-": False, "w": True}


def check_mode(mode: Any, known: Collection[str] = NEW) -> None:
    """Raise ValueError for a mode that a function does not have."""
    if mode not in known:
        raise ValueError(f"mode={mode!r}; known are {', '.join(map(repr, known))}")
