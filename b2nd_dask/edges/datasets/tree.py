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

    def levels(self, path: str = "") -> Iterator[tuple[str, Tree]]:
        """List this and all groups inside with their paths, outer ones first."""
        yield path, self
        for name, group in self.groups.items():
            yield from group.levels(f"{path}/{name}".lstrip("/"))

    def walk(self) -> Iterator[tuple[str, Member]]:
        """List all arrays with their paths in the tree."""
        for path, level in self.levels():
            if level.only is not None:
                yield path, level.only
            for name, member in level.members.items():
                yield f"{path}/{name}".lstrip("/"), member

    def notes(self, kind: str) -> list[str]:
        """Collect `lost` or `refused` of this and of all groups inside."""
        return [note for _, level in self.levels() for note in getattr(level, kind)]

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

    def as_group(self) -> Tree:
        """The tree as a group, in which an array has a name."""
        if self.only is None:
            return self
        return Tree(self.label, members={self.only.name or "values": self.only})

    def listed(self) -> str:
        """Names of the arrays, for messages."""
        names = [printable(path) for path, _ in self.walk()]
        if not names:
            return "no arrays"
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return ", ".join(names[:_LISTED]) + more
