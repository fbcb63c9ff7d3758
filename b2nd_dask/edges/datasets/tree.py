"""`Tree`: the lazy arrays of a source with their labels, and the labels as vlmeta and manifest.

docs/format.md, Labels, describes the entries.
"""

from __future__ import annotations

import re
import string
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.datasets.places import DEEPEST
from b2nd_dask.errors import level_of_caller
from b2nd_dask.format.labels import Labels, default_dims, pack_labels, storable, too_many_coords
from b2nd_dask.format.manifest import COORD, Manifest, build_manifest
from b2nd_dask.frame.members.store import some_of
from b2nd_dask.graph.write.to_b2nd import to_b2nd
from b2nd_dask.storage import printable

#: CF's attribute with the names of coordinates.
_COORDINATES = "coordinates"
#: Most notes that a message lists.
_LISTED = 10


@dataclass(frozen=True)
class Member:
    """One array of a source."""

    array: da.Array
    dims: tuple[str, ...] | None = None
    """None if the source has no names of dims."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    is_coord: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)
    """Options of `to_b2nd` for the frame."""
    unlimited: tuple[int, ...] = ()
    """Axes that may grow in HDF5."""

    @property
    def sizes(self) -> set[tuple[str, int]]:
        """Names and lengths of the dims; without names, those that a reader gives them."""
        dims = default_dims(self.array.ndim) if self.dims is None else self.dims
        return set(zip(dims, self.array.shape, strict=True))

    def is_coordinate(self, name: str) -> bool:
        """Whether the array is a coordinate if `name` is its name in the tree."""
        return self.is_coord or self.dims == (name,)

    def stem(self, name: str) -> str:
        """File name of the frame, without suffix."""
        return COORD + name if self.is_coordinate(name) else name


@dataclass
class Tree:
    """A group of arrays and groups, or a single array."""

    label: str
    attrs: dict[str, Any] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[str, Tree] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """Metadata that the target cannot hold, for a warning."""
    refused: dict[str, str] = field(default_factory=dict)
    """Names of the arrays that the target cannot hold, each with a note: its path, and why."""
    depth: int = 0
    """Number of groups around this one."""
    is_array: bool = False
    """Whether it is one array, the only member: its name is empty if the source has none."""

    def inside(self, name: str) -> Tree | None:
        """Make the tree of a group in this one; refuse it if it lies in over `DEEPEST` others."""
        inner = Tree(f"{self.label}/{printable(name)}", depth=self.depth + 1)
        if inner.depth > DEEPEST:
            self.refused[name] = f"{inner.label}: the group lies in more than {DEEPEST} others"
            return None
        self.groups[name] = inner
        return inner

    def levels(self, path: str = "") -> Iterator[tuple[str, Tree]]:
        """List this group and all groups in it with their paths, outer ones first."""
        yield path, self
        for name, group in self.groups.items():
            yield from group.levels(f"{path}/{name}".lstrip("/"))

    def walk(self) -> Iterator[tuple[str, Member]]:
        """List all arrays with their paths in the tree; that of a single array is empty."""
        for path, level in self.levels():
            for name, member in level.members.items():
                yield "" if level.is_array else f"{path}/{name}".lstrip("/"), member

    def add(self, name: str, member: Callable[[], Member]) -> None:
        """Add or replace an array; refuse it on a TypeError, which a single array raises."""
        try:
            self.members[name] = member()
        except TypeError as error:
            if self.is_array:
                raise TypeError(f"{self.label}: {error}") from error
            self.members.pop(name, None)
            self.refused[name] = f"{self.label}/{printable(name)}: {error}"

    def convert(self, converted: Callable[[Member], Member]) -> None:
        """Convert each array, as by `add`."""
        for _, level in self.levels():
            for name, member in list(level.members.items()):
                level.add(name, partial(converted, member))

    def part(self, path: str, *, with_coords: bool = False) -> Tree:
        """The tree of a group or of a single array in this tree.

        `with_coords` includes the coordinates of an array's dims: its tree is then a group. Raises
        FileNotFoundError if there is no such member; the message lists the existing ones. Raises
        TypeError if it was refused.
        """
        found = self
        # arrays of a .npz may have a / in their names
        parts = [path] if path in self.members else [part for part in path.split("/") if part]
        for depth, name in enumerate(parts):
            # an array and a group may have one name in stores; with a / at the end it is the group
            is_array = depth == len(parts) - 1 and not (name in found.groups and path[-1] == "/")
            if name in found.members and is_array:
                label, member = f"{self.label}::{path}", found.members[name]
                if with_coords and name not in found.coords:
                    return Tree(label, members=found.coords_of(name), lost=found.lost)
                return Tree(label, members={name: member}, lost=found.lost, is_array=True)
            if name in found.groups:
                found = found.groups[name]
            elif name in found.refused:
                raise TypeError(found.refused[name])
            else:
                raise FileNotFoundError(
                    f"{self.label}: no array or group is called {path!r}; it holds {self.listed()}"
                )
        return found

    def coords_of(self, name: str) -> dict[str, Member]:
        """An array of the group and its coordinates: those whose dims and lengths it has."""
        own, coords = self.members[name].sizes, self.coords
        return {
            n: member
            for n, member in self.members.items()
            if n == name or (n in coords and member.sizes <= own)
        }

    @property
    def coords(self) -> set[str]:
        """Names of the group's coordinates, also of those that only attributes name, as in CF."""
        texts = (str(member.attrs.get(_COORDINATES, "")) for member in self.members.values())
        named = {name for text in texts for name in text.split()}
        return {n for n, member in self.members.items() if n in named or member.is_coordinate(n)}

    def as_group(self) -> Tree:
        """The tree as a group; a single array gets a name."""
        if not self.is_array:
            return self
        return Tree(self.label, members={n or "values": each for n, each in self.members.items()})

    def listed(self) -> str:
        """Names of the arrays, for messages."""
        return (
            some_of([path or "one array, without a name" for path, _ in self.walk()]) or "no arrays"
        )


def some_notes(notes: list[str]) -> str:
    """The first of several notes, for a message; they may have names from the source."""
    notes = [printable(note) for note in dict.fromkeys(notes)]
    more = f"; and {len(notes) - _LISTED} more" if len(notes) > _LISTED else ""
    return "; ".join(notes[:_LISTED]) + more


def announce(tree: Tree, target: str, *, skip: bool | None, unlimited: bool = False) -> None:
    """Warn about metadata that a target cannot hold; raise TypeError for arrays, or skip them.

    `skip` is None if the user cannot choose it. `unlimited`: the target has unlimited axes.
    """
    levels = [level for _, level in tree.levels()]
    refused = [note for level in levels for note in level.refused.values()]
    if refused and not skip:
        left_out = "it" if len(refused) == 1 else f"these {len(refused)}"
        advice = "" if skip is None else f". skip=True (--skip) leaves {left_out} out"
        raise TypeError(some_notes(refused) + advice)
    lost = [f"left out: {note}" for note in refused]
    lost += [note for level in levels for note in level.lost]
    growing = [
        f"{[*member.unlimited]} of {path or tree.label}"
        for path, member in tree.walk()
        if member.unlimited and not unlimited
    ]
    if growing:
        why = "any axis of a frame can grow by append_axis= or append_dim="
        lost.append(f"unlimited axes {some_notes(growing)} ({why})")
    if lost:
        warnings.warn(
            f"{target} cannot hold: {some_notes(lost)}", UserWarning, stacklevel=level_of_caller()
        )


def entries_of(
    member: Member, name: str | None, *, coords: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Entries of vlmeta for an array; none if it has only labels that are defaults.

    Without `coords` it is named like its file, and its name alone needs no entry.
    """
    is_coord = name is not None and member.is_coordinate(name)
    has_dims, default = member.dims is not None, default_dims(member.array.ndim)
    bare = Labels(default, has_dims=has_dims)
    dims = default if member.dims is None else member.dims
    labels = Labels(dims, name, is_coord, member.attrs, coords or {}, has_dims)
    if labels == bare or not (has_dims or member.attrs or coords is not None):
        return {}
    return pack_labels(labels)


def check_coords(coords: Mapping[str, Member], label: str) -> None:
    """Raise ValueError if the frame of an array, called `label`, cannot hold its coordinates."""
    if problem := too_many_coords({n: int(each.array.nbytes) for n, each in coords.items()}):
        raise ValueError(
            f"{label}: {problem}; write a dataset to a directory (.b2d; in xarray of "
            ".to_dataset()), or omit some, in xarray by .drop_vars"
        )


def embedded(coords: Mapping[str, Member], label: str) -> dict[str, bytes]:
    """The frames of coordinates as bytes, to embed them in that of an array; see `check_coords`."""
    check_coords(coords, label)
    found = {}
    with tempfile.TemporaryDirectory(prefix="b2nd-dask-") as folder:
        for number, (name, member) in enumerate(coords.items()):
            path = Path(folder, f"{number}.b2nd")
            to_b2nd(member.array, path, meta={}, vlmeta=entries_of(member, name), fsync=False)
            found[name] = path.read_bytes()
    return found


#: Converts an attribute (name, value, its array) for a target; raises an error if it cannot.
Form = Callable[[str, Any, Member | None], Any]


def keep_attrs(tree: Tree, form: Form = lambda name, value, _: storable(name, value)) -> None:
    """Convert attributes for a target; move those that it cannot hold to `lost`."""
    owners: list[tuple[str, Any, Member | None]]
    owners = [(level.label, level.attrs, None) for _, level in tree.levels()]
    owners += [(path or tree.label, member.attrs, member) for path, member in tree.walk()]
    for owner, attrs, member in owners:
        for name, value in list(attrs.items()):
            try:
                attrs[name] = form(name, value, member)
                if holds_bytes(value) and not holds_bytes(attrs[name]):
                    tree.lost.append(f"bytes in the attribute {name!r} of {owner} (as text)")
            except (TypeError, ValueError, KeyError, OverflowError) as reason:
                del attrs[name]
                tree.lost.append(f"attribute {name!r} of {owner} ({reason})")


def holds_bytes(value: Any) -> bool:
    """Whether an attribute is bytes, or a list with bytes."""
    if isinstance(value, list | tuple):
        return any(map(holds_bytes, value))
    return isinstance(value, bytes) or (isinstance(value, np.ndarray) and value.dtype.kind == "S")


def refuse_paths(tree: Tree, reserved: str) -> None:
    """Refuse arrays and groups of a tree if a part of their path matches a regular expression.

    Also refuse arrays with the path of a group, which may be a part of another array's name. These
    are rules of zarr and HDF5; `check_layout` has those of directories of frames.
    """
    if tree.is_array:
        return
    groups = {str(each) for path, _ in tree.walk() for each in PurePosixPath(path).parents}
    groups.update(path for path, _ in tree.levels())
    for at, level in tree.levels():
        for named, taken in ((level.groups, set[str]()), (level.members, groups)):
            for name in list(named):
                path = f"{at}/{name}".lstrip("/")
                is_reserved = any(re.fullmatch(reserved, p, re.DOTALL) for p in path.split("/"))
                if path in taken or is_reserved:
                    del named[name]
                    reason = "it has a reserved name or character"
                    why = "a group has this path" if path in taken else reason
                    level.refused[name] = f"{level.label}/{printable(name)}: {why}"


def name_coordinates(tree: Tree) -> None:
    """Name coordinates that are no dims in attributes, as CF and xarray do.

    Those of no array are named by their group. Names with spaces cannot be listed, and are lost.
    """
    for _, level in tree.levels():
        named = {n: m for n, m in level.members.items() if m.is_coord and m.dims != (n,)}
        spaced = [n for n in named if set(n) & set(string.whitespace)]
        level.lost += [f"{level.label}/{n} as a coordinate (its name has a space)" for n in spaced]
        found = {n: set(m.dims or ()) for n, m in named.items() if n not in spaced}
        unnamed = dict.fromkeys(found)
        for name, member in list(level.members.items()):
            own = [n for n, dims in found.items() if dims <= set(member.dims or ())]
            if own and not member.is_coordinate(name):
                attrs = {_COORDINATES: " ".join(own), **member.attrs}
                level.members[name] = replace(member, attrs=attrs)
                for each in str(attrs[_COORDINATES]).split():
                    unnamed.pop(each, None)
        if unnamed:
            level.attrs.setdefault(_COORDINATES, " ".join(unnamed))


def sizes_of(tree: Tree) -> dict[str, int]:
    """Length of each dim; raise ValueError if a dim has several."""
    found: dict[str, tuple[int, str]] = {}
    for name, member in tree.members.items():
        for dim, size in zip(member.dims or (), member.array.shape, strict=False):
            known, other = found.setdefault(dim, (size, name))
            if known != size:
                raise ValueError(
                    f"{tree.label}: the dim {dim!r} has the length {known} in {other!r} and "
                    f"{size} in {name!r}; arrays of one dataset share their dims"
                )
    return {dim: size for dim, (size, _) in found.items()}


def updated_manifest(
    manifest: Manifest, tree: Tree, sizes: Mapping[str, int] | None = None
) -> bytes:
    """Update a `dataset.json` with the variables and attributes of a tree, and lengths of dims."""
    is_coord = {name: name not in manifest.data_vars for name in manifest.names}
    is_coord |= {name: member.is_coordinate(name) for name, member in tree.members.items()}
    attrs = {name: member.attrs for name, member in tree.members.items()}
    changed = replace(
        manifest,
        data_vars=tuple(name for name in is_coord if not is_coord[name]),
        coords=tuple(name for name in is_coord if is_coord[name]),
        sizes={**manifest.sizes, **sizes_of(tree), **(sizes or {})},
        attrs={**manifest.attrs, **tree.attrs},
        variable_attrs={**manifest.variable_attrs, **attrs},
    )
    return build_manifest(changed)
