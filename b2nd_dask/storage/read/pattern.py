"""Patterns such as ``data/*.b2nd``: the paths or URLs that match, in the order of their numbers."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from b2nd_dask.storage.read.connection import connect
from b2nd_dask.storage.read.location import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKS = re.compile(r"[*?\[]")
_NUMBERS = re.compile(r"(\d+)")


def matches_of(
    urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str] | None:
    """Expand a pattern.

    A path is a pattern where it has ``*``, ``?`` or ``[`` and nothing of that very name is there; a
    URL, where it has ``*``: the other marks may belong to a query or an address.

    Parameters
    ----------
    storage_options : mapping, optional
        For the fsspec file system of a URL.

    Returns
    -------
    list of str or None
        Paths or URLs, naturally sorted: ``x2`` comes before ``x10``. None where this is no pattern.

    Raises
    ------
    FileNotFoundError
        Nothing matches.
    """
    if not _MARKS.search(os.fsdecode(urlpath)):
        return None
    location = Location.of(urlpath, storage_options=storage_options)
    if not location.is_url:
        path = location.url
        # such names are rare, but legal
        if os.path.lexists(path) or not _MARKS.search(path):
            return None
        pattern = _escape_folders(path)
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - pathlib's drops trailing parts
    elif "*" in location.url:
        found = _matches_of_url(location)
    else:
        return None
    if not found:
        raise FileNotFoundError(f"{location.label}: nothing matches this pattern")
    return sorted(found, key=natural_key)


def natural_key(name: str) -> list[tuple[int, str, str]]:
    """Sort key by which numbers in names go by their values.

    Examples
    --------
    >>> sorted(["x10", "x2", "x2b", "a"], key=natural_key)
    ['a', 'x2', 'x2b', 'x10']
    """
    return [_order(part) for part in _NUMBERS.split(name)]


def _order(part: str) -> tuple[int, str, str]:
    """Sort key of a number, which may have more digits than `int` takes, or of a text."""
    if not part.isdecimal():
        return -1, "", part
    # other scripts have digits, too
    digits = "".join(str(int(digit)) for digit in part).lstrip("0")
    # the text, too, so that 1 and 01 have one order
    return len(digits), digits, part


def _escape_folders(pattern: str) -> str:
    """Escape the marks of the folders in front that are there under these very names."""
    folder = next(str(each) for each in Path(pattern).parents if os.path.lexists(each))
    return glob.escape(folder) + pattern.removeprefix(folder)


def _matches_of_url(location: Location) -> list[str]:
    """Expand the link of a chain of URLs that has the pattern; the others stay."""
    links = location.url.split("::")
    at = next(i for i, link in enumerate(links) if "*" in link)
    rest = "::".join(links[at:])
    connection = connect(Location.of(rest, storage_options=location.storage_options))
    # what the file system strips off a URL, as the scheme and the host, comes back in front
    pattern = connection.path.lstrip("/")
    prefix, mark, _ = links[at].rpartition(pattern)
    if not mark:
        raise ValueError(
            f"{location.label}: the pattern cannot be expanded; pass a list of the URLs"
        )
    found = connection.call(lambda: connection.fs.glob(connection.path), location.label)
    links_found = (prefix + name.lstrip("/") for name in found)
    return ["::".join([*links[:at], link, *links[at + 1 :]]) for link in links_found]
