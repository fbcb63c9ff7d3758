"""Layout of the frames of a dataset in a directory or an archive."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from b2nd_dask.edges.datasets.tree import Member, Tree, entries_of, sizes_of, updated_manifest
from b2nd_dask.format.labels import too_many_coords
from b2nd_dask.format.manifest import MANIFEST, Manifest, build_embed
from b2nd_dask.frame.members.store import EMBED
from b2nd_dask.graph.write.to_b2nd import Write, to_b2nd
from b2nd_dask.storage import about, printable, remove_path

#: Suffixes with a meaning in directories and stores of frames.
_SUFFIXES = (".b2nd", ".b2f", ".b2b", ".b2e", ".b2d", ".b2z", ".b2frame")
#: Most bytes of a name; leaves room for the names of staging areas.
_LONGEST_NAME = 100


def check_layout(tree: Tree, advice: str = "change it by .rename") -> None:
    """Check that the names in a tree can be file names, and that lengths of dims agree.

    `advice` is the way to change a name, for messages. Raises ValueError if a name cannot be a file
    name, two names differ only in case, or a dim has several lengths.
    """
    for _, level in tree.levels():
        folded: dict[str, str] = {}
        for name in (*level.members, *level.groups):
            if problem := _problem_of_name(name):
                raise ValueError(
                    f"{level.label}: {printable(name)!r} cannot be the name of a file: {problem}; "
                    f"{advice}"
                )
            if other := folded.get(name.casefold()):
                raise ValueError(
                    f"{level.label}: {other!r} and {name!r} differ only in case, and are one file "
                    f"on some systems; {advice}"
                )
            folded[name.casefold()] = name
        sizes_of(level)


def _problem_of_name(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name[0] in "._":
        return f"{name[0]!r} at the start marks files that are not variables"
    if name == MANIFEST or Path(name).suffix in _SUFFIXES:
        return "files with this name or suffix are something else in a store"
    if wrong := sorted({c for c in name if c in "/\\" or not c.isprintable()}):
        return f"it has {', '.join(map(repr, wrong))}"
    return (
        f"it is longer than {_LONGEST_NAME} bytes" if len(name.encode()) > _LONGEST_NAME else None
    )


def write_dataset(
    tree: Tree, ready: Path, write: Callable[[list[Write]], object], *, packed: bool
) -> None:
    """Write a directory of frames or, if `packed`, an uncompressed archive."""
    folder = ready.with_name("frames.part") if packed else ready
    writes: list[Write] = []
    for inner, level in tree.levels():
        place = folder / inner
        place.mkdir()
        manifest = Manifest(groups=tuple(level.groups))
        (place / MANIFEST).write_bytes(updated_manifest(manifest, level))
        # without fsync: `staged` syncs all files
        writes += frames_of(level, place, fsync=False)
    # the member list of python-blosc2
    (folder / EMBED).write_bytes(build_embed())
    write(writes)
    if packed:
        with about(str(ready)):
            with zipfile.ZipFile(ready, "w", zipfile.ZIP_STORED) as archive:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        archive.write(path, path.relative_to(folder).as_posix())
            remove_path(folder)


def frames_of(tree: Tree, place: Path, **options: Any) -> list[Write]:
    """The writes of a group's frames into a directory."""
    writes: list[Write] = []
    for name, member in tree.members.items():
        how = {"vlmeta": entries_of(member, name), "meta": {}, **options, **member.storage}
        writes.append((member.array, place / f"{member.stem(name)}.b2nd", how))
    return writes


def embedded(coords: Mapping[str, Member], label: str) -> dict[str, bytes]:
    """The frames of coordinates as bytes, to embed them in that of an array, called `label`.

    Raises ValueError if they are too many or too large.
    """
    if problem := too_many_coords({n: int(each.array.nbytes) for n, each in coords.items()}):
        raise ValueError(
            f"{label}: {problem}; write a dataset to a directory (.b2d; in xarray of "
            ".to_dataset()), or omit some, in xarray by .drop_vars"
        )
    found = {}
    with tempfile.TemporaryDirectory(prefix="b2nd-dask-") as folder:
        for number, (name, member) in enumerate(coords.items()):
            path = Path(folder, f"{number}.b2nd")
            to_b2nd(member.array, path, meta={}, vlmeta=entries_of(member, name), fsync=False)
            found[name] = path.read_bytes()
    return found
