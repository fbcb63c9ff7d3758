"""Hints for messages where a frame is missing or is something else: the reason, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from b2nd_dask.errors import OPEN_STORE

#: How several frames become one array.
TOGETHER = (
    "open each, and put them together by da.concatenate([da.from_b2nd(path) for path in paths]) "
    "or da.stack"
)

#: Labels end in the offset of a frame, as in ``a.zip[38:]``.
_PATTERN = re.compile(r"[*?]|\[(?!\d+:\])[^\]]+\]")
_ZARR = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}


def why_missing(path: str) -> str:
    """Reason why nothing is at a local path: the first folder that is missing, or a pattern.

    Parameters
    ----------
    path : str
        An absolute path.

    Returns
    -------
    str
        To be put behind a message; empty where there is nothing to say.
    """
    for folder in reversed(Path(path).parents):
        # not Path.is_dir, which raises where a folder may not be looked into
        if not os.path.isdir(folder):  # noqa: PTH112
            there = os.path.lexists(folder)
            reason = f"{folder} is no folder" if there else f"there is no folder {folder}"
            return f": {reason}{if_pattern(path)}"
    return if_pattern(path)


def if_pattern(name: str) -> str:
    """Say that patterns are not expanded, where the missing name looks like one.

    Parameters
    ----------
    name : str
        Path, or URL without secrets.

    Returns
    -------
    str
        To be put behind a message.
    """
    if not _PATTERN.search(name):
        return ""
    return f"; if it is a pattern, list its files by glob or fsspec: {TOGETHER}"


def what_directory(path: str, names: Collection[str] = ()) -> str:
    """Say what a directory probably is that is no sparse frame.

    Parameters
    ----------
    path : str
        Path, or URL without secrets.
    names : collection of str
        What is in it, as far as it is known.

    Returns
    -------
    str
        To be put behind a message.
    """
    if not _ZARR.isdisjoint(names):
        return " (it is a Zarr array or group: da.from_zarr reads an array)"
    if any(name.endswith(".chunk") for name in names):
        return " (there are chunks, but the index of a sparse frame is missing)"
    if "embed.b2e" in names or path.rstrip("/").endswith(".b2d"):
        return f" (a .b2d is a store of python-blosc2: {OPEN_STORE}, as the path of a .b2nd in it)"
    frames = sorted(name for name in names if name.endswith(".b2nd"))
    if frames:
        return f" (there are frames in it, such as {frames[0]}: pass the path of one)"
    return ""
