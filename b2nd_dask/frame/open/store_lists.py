"""What stores hold, parsed once for all of their members that are opened.

A store of many members has a long list, and each member is found in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from b2nd_dask.storage import ByteReader, Identity, Location

T = TypeVar("T")

#: Lists that a process keeps.
_KEPT = 4


class StoreLists(Generic[T]):
    """The lists of the stores that were opened last, by location and version."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Identity], T] = {}

    def get(self, location: Location, reader: ByteReader, parse: Callable[[], T]) -> T:
        """Parse the list of a store, or take the one of this version.

        Parameters
        ----------
        location : Location
            Of the store, or of a member of it.
        reader : ByteReader
            Of the store, opened.
        """
        if not reader.identity_is_cheap:
            # an identity that may say less than the list does
            return parse()
        key = (replace(location, member="", embedded=False).key, reader.opened_identity())
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = parse()
            # without a lock, which a fork would leave held: no thread comes between `list` or `pop`
            for old in list(self._kept)[:-_KEPT]:
                self._kept.pop(old, None)
        return found
