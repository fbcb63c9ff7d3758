"""Places of datasets: a directory or a level of a store, with frames, groups and a manifest."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.manifest import (
    COORD,
    MANIFEST,
    MAX_MANIFEST_NBYTES,
    Manifest,
    parse_manifest,
)
from b2nd_dask.frame.access import locate
from b2nd_dask.frame.members.listing import Member, list_members
from b2nd_dask.frame.members.store import (
    ARRAY,
    EMBED,
    files,
    inside,
    is_folder,
    is_key,
    is_named_store,
    is_plain_folder,
    listed,
    locate_member,
    open_store,
    opened,
    path_of,
    require_inside,
    some_of,
)
from b2nd_dask.storage import (
    MAIN_MEMBER,
    Location,
    Span,
    is_zip,
    printable,
    split_store,
)

_SEALED = ".b2enc"
#: Most levels of groups: a small file may have very many.
DEEPEST = 32
#: Most groups to open in one call; each takes some ms.
_MOST_GROUPS = 10_000


def manifest_of(place: Place) -> Manifest:
    """Parse the `dataset.json` of a place; an empty manifest if there is none."""
    raw = place.raw_manifest
    if raw is None:
        return Manifest()
    with locating(path=f"{place.label.rstrip('/')}/{MANIFEST}"):
        return parse_manifest(raw)


@dataclass(frozen=True)
class Folder:
    """A directory of frames: local, in an object store or on a web server."""

    location: Location

    @property
    def label(self) -> str:
        """Path or URL for messages."""
        return self.location.label

    def arrays(self) -> list[str]:
        """Names of the frames here, on a web server by the manifest; FileNotFoundError if none."""
        if self.location.is_web:
            manifest = manifest_of(self)
            if not (manifest.names or manifest.groups):
                raise _unlisted(self.label)
            return [*manifest.data_vars, *(COORD + name for name in manifest.coords)]
        for name in self.names:
            if name.endswith(_SEALED):
                raise _sealed(self.label, name)
        return sorted(name.removesuffix(ARRAY) for name in self.names if name.endswith(ARRAY))

    def groups(self) -> list[str]:
        """Names of the groups here."""
        if self.location.is_url:
            found = () if self.location.is_web else listed(self.location, f"*/*{ARRAY}")
            names = {PurePosixPath(name).parent.name for name in found}
            return sorted(name for name in names if not name.startswith("."))
        root = Path(self.location.url)
        return sorted(each.name for each in root.iterdir() if _is_group(each))

    def inside(self, group: str) -> Folder:
        """The directory of a group here."""
        return Folder(self._own(group))

    def locate(self, name: str) -> Location:
        """Location of the frame with a name."""
        return self._own(name + ARRAY)

    def _own(self, name: str) -> Location:
        """Location of a file or folder here; in a dataset it must not be a link out of it."""
        found = inside(self.location, name)
        if not self.location.is_url and Path(self.location.url, MANIFEST).exists():
            require_inside(self.location, found, name)
        return found

    @cached_property
    def raw_manifest(self) -> bytes | None:
        """Bytes of the `dataset.json` here; None if there is none."""
        with opened(inside(self.location, MANIFEST)) as reader:
            if reader is None:
                return None
            (data,) = reader.read([Span(0, MAX_MANIFEST_NBYTES + 1)])
            return data

    @cached_property
    def names(self) -> list[str]:
        """Names of the files and folders here; none if the server cannot list."""
        if self.location.is_url:
            return [] if self.location.is_web else listed(self.location, "*")
        names = (path.name for path in Path(self.location.url).iterdir())
        return [name for name in names if not name.startswith(".")]


def _is_group(path: Path) -> bool:
    """Whether a path is a directory of frames, and not itself a sparse frame."""
    if path.name.startswith(".") or path.name.endswith(ARRAY) or not path.is_dir():
        return False
    return not (path / MAIN_MEMBER).exists() and (
        (path / MANIFEST).exists() or any(path.glob(f"*{ARRAY}"))
    )


@dataclass(frozen=True)
class StoreLevel:
    """The root or a group of a store of python-blosc2."""

    store: Location
    keys: tuple[str, ...]
    """Keys of all arrays in the store, sorted."""
    group: str = ""

    @property
    def label(self) -> str:
        """Path or URL for messages."""
        return f"{self.store.label}{printable(self.group)}"

    def arrays(self) -> list[str]:
        """Names of the frames here; FileNotFoundError if a web server has to list them."""
        if self.store.is_web and is_folder(self.store):
            raise _unlisted(self.label)
        return sorted(rest for rest in self._rests() if "/" not in rest)

    def groups(self) -> list[str]:
        """Names of the groups here."""
        return sorted({rest.partition("/")[0] for rest in self._rests() if "/" in rest})

    def inside(self, group: str) -> StoreLevel:
        """The level of a group."""
        return replace(self, group=f"{self.group}/{group}")

    def locate(self, name: str) -> Location:
        """Location of the frame with a name."""
        key = f"{self.group}/{name}"
        if not is_key(key):
            # the store may come from any program
            raise UnsupportedFrameError(
                f"no frame can be found by the key {printable(key)!r}; give the member another key "
                "with python-blosc2",
                path=self.label,
            )
        return locate_member(self.store, key)

    @property
    def raw_manifest(self) -> bytes | None:
        """Bytes of the `dataset.json` here; None if there is none."""
        with open_store(self.store) as store:
            return store.read(f"{self.group}/{MANIFEST}".lstrip("/"), MAX_MANIFEST_NBYTES)

    def _rests(self) -> Iterable[str]:
        prefix = f"{self.group}/"
        first = bisect_left(self.keys, prefix)
        inside_it = takewhile(lambda key: key.startswith(prefix), islice(self.keys, first, None))
        return (key.removeprefix(prefix) for key in inside_it)


Place = Folder | StoreLevel
"""A directory, or a level of a store."""


def place_of(location: Location) -> Place | None:
    """The place at a location; None for a frame, or if nothing is there."""
    if isinstance(location.urlpath, bytes) or location.offset or location.member:
        return None
    folder = _folder_at(location)
    return _store(location) if folder is None and _may_be_store(location) else folder


def members_of(location: Location) -> list[Member] | None:
    """List the members of a store, or the frames and stores of a directory; None for a frame.

    Those of a directory have the paths of their files as keys, also in directories inside it.
    """
    folder = _folder_at(location)
    if folder is None:
        return list_members(location)
    names = files(location)
    if location.is_web:
        found = ((path, name) for path, level in levels_of(folder) for name in level.arrays())
        names = [f"{path}/{name}{ARRAY}".lstrip("/") for path, name in found]
    kinds = {ARRAY: "array", ".b2z": "store", ".b2e": "store"}
    shown = ((name, kinds.get(PurePosixPath(name).suffix)) for name in sorted(names))
    return [Member(name, what, None) for name, what in shown if what]


def _folder_at(location: Location) -> Folder | None:
    """The directory at a location; None if it is a store, a frame, or not there."""
    folder = Folder(location)
    if not location.is_url:
        path = Path(location.url)
        is_store = path.suffix == ".b2d" and not is_plain_folder(location)
        is_there = path.is_dir() and not (path / MAIN_MEMBER).exists()
        return folder if is_there and not is_store else None
    name = path_of(location)
    if name.endswith((".b2z", ".b2e", ARRAY, ".cat2", ".caterva")):
        return None
    if location.is_web:
        # it cannot list: only the manifest of the folder names the frames
        return None if folder.raw_manifest is None else folder
    if name.endswith(".b2d"):
        with opened(inside(location, EMBED)) as reader:
            if reader is not None:
                return None
    is_empty = folder.raw_manifest is None and not (folder.arrays() or folder.groups())
    return None if is_empty else folder


def _may_be_store(location: Location) -> bool:
    if location.is_url or is_folder(location):
        return is_named_store(location)
    with closing(location.open()) as reader:
        (head,) = reader.read([Span(0, 8)])
        if bytes(head).startswith(b"B2ENCBLB"):
            raise _sealed(location.label, Path(location.url).name)
        return is_zip(reader) or location.url.endswith(".b2e")


def _store(location: Location) -> Place | None:
    members = list_members(location)
    if members is None:
        return None
    for member in members:
        if _SEALED in member.what:
            raise _sealed(location.label, member.key)
    return StoreLevel(location, tuple(m.key for m in members if m.what.startswith("array")))


def _unlisted(label: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{label}: a web server does not list its files, and there is no dataset.json with a list; "
        "pass a list of the URLs of frames"
    )


def _sealed(label: str, name: str) -> UnsupportedFrameError:
    return UnsupportedFrameError(
        f"{printable(name)} is encrypted by xarray-blosc2; open it by "
        "xarray_blosc2.open(PATH, key=KEY)",
        path=label,
    )


def groups_of(place: Place) -> list[str]:
    """Names of the groups in a place, also of those that only its manifest names, checked.

    In a store a group is listed by its frames, so one that holds only groups is not.
    """
    listed = set(place.groups())
    named = set(manifest_of(place).groups) - listed
    for name in sorted(named):
        _require_group(place, name)
    return sorted(listed | named)


def _require_group(place: Place, name: str) -> None:
    if place.inside(name).raw_manifest is None:
        problem = f"{MANIFEST} names the group {name!r}, which does not exist"
        raise FrameFormatError(problem, path=place.label)


def levels_of(place: Place) -> list[tuple[str, Place]]:
    """The groups of a store or directory; UnsupportedFrameError if there are too many."""
    levels = [("/", place)]
    for at, (path, level) in enumerate(levels):
        inner = [(f"{path.rstrip('/')}/{name}", level.inside(name)) for name in groups_of(level)]
        # inner groups come right after their parent
        levels[at + 1 : at + 1] = inner
        problem = f"it has more than {_MOST_GROUPS} groups"
        if inner and path.rstrip("/").count("/") == DEEPEST:
            problem = f"groups are nested in more than {DEEPEST} others"
        elif len(levels) <= _MOST_GROUPS:
            continue
        raise UnsupportedFrameError(
            f"{problem}; open one of them by group= or as PATH/GROUP", path=place.label
        )
    return levels


def in_group(place: Place, group: str) -> Place:
    """The place of a group, given as a path such as ``"model/run1"``.

    Raises FileNotFoundError if there is no such group; the message lists the existing ones.
    """
    part, _, rest = group.strip("/").partition("/")
    if not part:
        return place
    if isinstance(place, Folder) and place.location.is_web and part not in (".", ".."):
        # a web server cannot list groups: any name is accepted, if the last one has a manifest
        is_there = bool(rest) or place.inside(part).raw_manifest is not None
    elif not (is_there := part in place.groups()) and part in manifest_of(place).groups:
        # only this group: others that are missing do no harm
        _require_group(place, part)
        is_there = True
    if not is_there:
        known = some_of(sorted({*place.groups(), *manifest_of(place).groups})) or "none"
        raise FileNotFoundError(f"{place.label}: no group {part!r} here; groups: {known}")
    return in_group(place.inside(part), rest)


def found_at(
    source: Any, storage_options: Mapping[str, Any] | None, group: str = ""
) -> Place | Location:
    """The place of a user's dataset, of a group in it or of a store's group; else a location.

    A path that is the key of an array and of a group is the array's, unless `group` is given.
    """
    if isinstance(source, str | os.PathLike):
        path, key = split_store(source)
        if key is not None:
            store = place_of(Location.of(path, storage_options=storage_options))
            if isinstance(store, StoreLevel):
                is_array = not group and f"/{key}" in store.keys
                if not is_array and any(each.startswith(f"/{key}/") for each in store.keys):
                    return in_group(store, f"{key}/{group}")
    location = locate(source, 0, storage_options)
    place = place_of(location)
    return location if place is None else in_group(place, group)
