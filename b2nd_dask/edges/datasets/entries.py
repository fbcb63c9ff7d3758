"""vlmeta and manifest of what is written (docs/format.md, Labels)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.format.labels.labels import Labels
from b2nd_dask.format.labels.pack import build_manifest, pack_labels, problem_of


def labels_of(
    member: Member, name: str | None, *, coords: Mapping[str, bytes] | None = None
) -> Labels:
    """Labels of an array under its name in a tree."""
    dims = member.dims
    if dims is None:
        dims = tuple(f"dim_{axis}" for axis in range(member.array.ndim))
    is_coord = name is not None and member.is_coordinate(name)
    return Labels(dims, name, is_coord, member.attrs, coords or {})


def entries_of(
    member: Member, name: str | None, *, coords: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Entries of vlmeta for an array; none for one without dims and attributes."""
    if member.dims is None and not member.attrs:
        return {}
    return pack_labels(labels_of(member, name, coords=coords))


def unstorable_attrs(tree: Tree) -> list[tuple[str, dict[str, Any], str, str]]:
    """List attributes that cannot be stored: owner, all attributes of it, name, reason."""
    return [
        (owner, attrs, name, problem)
        for owner, attrs in _all_attrs(tree)
        for name, value in attrs.items()
        if (problem := problem_of(value)) is not None
    ]


def drop_unstorable(tree: Tree) -> None:
    """Move attributes that cannot be stored from all arrays to what is lost."""
    for owner, attrs, name, problem in unstorable_attrs(tree):
        del attrs[name]
        tree.lost.append(f"attribute {name!r} of {owner} ({problem})")


def _all_attrs(tree: Tree) -> Iterator[tuple[str, Any]]:
    for _, level in tree.levels():
        yield level.label, level.attrs
        for name, member in level.members.items():
            yield name, member.attrs
        if level.only is not None:
            yield level.label, level.only.attrs


def sizes_of(tree: Tree) -> dict[str, int]:
    """Length of each dim.

    Raises
    ------
    ValueError
        A dim has several lengths.
    """
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


def manifest_json(tree: Tree) -> bytes:
    """`dataset.json` of a group."""
    labels = {name: labels_of(member, name) for name, member in tree.members.items()}
    return build_manifest(labels, sizes_of(tree), tree.attrs, list(tree.groups))
