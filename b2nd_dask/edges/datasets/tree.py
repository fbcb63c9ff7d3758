"""`Tree`: the arrays of a source, not read yet, with their dims and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dask.array as da

from b2nd_dask.storage import printable

#: Names that an error lists.
_LISTED = 8


@dataclass(frozen=True)
class Member:
    """One array of a source."""

    array: da.Array
    dims: tuple[str, ...] | None = None
    """None where the source names none."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    """Of the variable, where it is not the name in the tree."""
    is_coord: bool = False

    def is_coordinate(self, name: str) -> bool:
        """Whether the array is a coordinate, under its name in the tree."""
        return self.is_coord or self.dims == (name,)


@dataclass
class Tree:
    """A group of arrays and of groups.

    A file of a single array is a tree with `only`, and without members.
    """

    label: str
    only: Member | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[str, Tree] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """What is metadata and cannot be kept, for a warning."""
    refused: list[str] = field(default_factory=list)
    """Arrays that cannot be kept, with the reason."""

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Member]]:
        """List all arrays with their paths in the tree."""
        if self.only is not None:
            yield prefix, self.only
        for name, member in self.members.items():
            yield f"{prefix}/{name}".lstrip("/"), member
        for name, group in self.groups.items():
            yield from group.walk(f"{prefix}/{name}".lstrip("/"))

    def notes(self, kind: str) -> list[str]:
        """Collect `lost` or `refused` of this and of all groups inside."""
        own: list[str] = list(getattr(self, kind))
        return own + [note for group in self.groups.values() for note in group.notes(kind)]

    def part(self, path: str) -> Tree:
        """Go to a group, or to an array as a tree of its own.

        Raises
        ------
        FileNotFoundError
            There is no such member; the message lists those that are there.
        """
        found = self
        parts = [part for part in path.split("/") if part]
        for depth, name in enumerate(parts):
            if name in found.groups:
                found = found.groups[name]
            elif name in found.members and depth == len(parts) - 1:
                member = found.members[name]
                return Tree(f"{self.label}::{path}", member, lost=found.lost)
            else:
                raise FileNotFoundError(
                    f"{self.label}: nothing is called {path!r} in it; it holds {self.listed()}"
                )
        return found

    def listed(self) -> str:
        """Names of the arrays, for messages."""
        names = [printable(path) for path, _ in self.walk()]
        if not names:
            return "no arrays"
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return ", ".join(names[:_LISTED]) + more

    def single(self) -> Member | None:
        """The array, where there is just one and no group."""
        if self.only is not None:
            return self.only
        if len(self.members) == 1 and not self.groups:
            (member,) = self.members.values()
            return member
        return None
