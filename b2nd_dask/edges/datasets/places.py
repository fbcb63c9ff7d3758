"""Places of datasets: a directory or a level of a store, with frames, groups and a manifest.

`open_snapshot` opens manifest and frames of one version of a dataset.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from b2nd_dask.errors import (
    B2ndError,
    FrameFormatError,
    UnsupportedFrameError,
    locating,
)
from b2nd_dask.format.manifest import MANIFEST, MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from b2nd_dask.frame.access import locate
from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.members.store import (
    ARRAY,
    EMBED,
    inside,
    is_folder,
    is_key,
    is_named_store,
    is_plain_folder,
    locate_member,
    open_store,
    opened,
    path_of,
    require_inside,
    some_of,
)
from b2nd_dask.storage import (
    MAIN_MEMBER,
    Identity,
    Location,
    Span,
    is_zip,
    matches_of,
    printable,
    split_path,
    split_store,
)

_SEALED = ".b2enc"
#: Attempts to open a dataset during concurrent changes.
_TRIES = 20
_Opened = TypeVar("_Opened")


def manifest_of(place: Place) -> Manifest:
    """Parse the `dataset.json` of a place; an empty manifest if there is none."""
    raw = place.read_manifest()
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

    def arrays(self) -> list[str] | None:
        """Names of the frames here."""
        if self.names is None:
            return None
        for name in self.names:
            if name.endswith(_SEALED):
                raise _sealed(self.label, name)
        return sorted(name.removesuffix(ARRAY) for name in self.names if name.endswith(ARRAY))

    def groups(self) -> list[str]:
        """Names of the groups here."""
        if self.location.is_url:
            found = self._listed(f"*/*{ARRAY}") or ()
            names = {PurePosixPath(split_path(url)[0]).parent.name for url in found}
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
        # names are as in files, and a web server unquotes
        found = inside(self.location, name.replace("%", "%25") if self.location.is_web else name)
        if not self.location.is_url and Path(self.location.url, MANIFEST).exists():
            require_inside(self.location, found, name)
        return found

    def read_manifest(self) -> bytes | None:
        """Bytes of the `dataset.json` here; None if there is none."""
        with opened(inside(self.location, MANIFEST)) as reader:
            if reader is None:
                return None
            (data,) = reader.read([Span(0, MAX_MANIFEST_NBYTES + 1)])
            return data

    @cached_property
    def names(self) -> list[str] | None:
        """Names of the files and folders here; None if the server cannot list."""
        if not self.location.is_url:
            names = (path.name for path in Path(self.location.url).iterdir())
            return [name for name in names if not name.startswith(".")]
        found = self._listed("*")
        if found is None:
            return None
        return [PurePosixPath(split_path(url)[0]).name for url in found]

    def _listed(self, pattern: str) -> list[str] | None:
        """URLs here that match a pattern; None if the server cannot list."""
        if self.location.is_web:
            return None
        try:
            return matches_of(inside(self.location, pattern).url, self.location.storage_options)
        except FileNotFoundError:
            return []


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
        """Names of the frames here."""
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

    def read_manifest(self) -> bytes | None:
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
    """The place at a location; None for a frame."""
    if isinstance(location.urlpath, bytes) or location.offset or location.member:
        return None
    return _remote_place(location) if location.is_url else _local_place(location)


def _local_place(location: Location) -> Place | None:
    path = Path(location.url)
    if path.is_dir():
        if (path / MAIN_MEMBER).exists():
            return None
        if path.suffix == ".b2d" and not is_plain_folder(location):
            return _store(location)
        return Folder(location)
    with closing(location.open()) as reader:
        (head,) = reader.read([Span(0, 8)])
        if bytes(head).startswith(b"B2ENCBLB"):
            raise _sealed(location.label, path.name)
        return _store(location) if is_zip(reader) or path.suffix == ".b2e" else None


def _remote_place(location: Location) -> Place | None:
    path = path_of(location)
    if path.endswith((".b2z", ".b2e")):
        return _store(location)
    if path.endswith((ARRAY, ".cat2", ".caterva")):
        return None
    folder = Folder(location)
    if path.endswith(".b2d"):
        with opened(inside(location, EMBED)) as reader:
            # a web server cannot list: the manifest of the folder names the frames
            if reader is not None and folder.arrays() is not None:
                return _store(location)
        return folder
    if folder.read_manifest() is not None or folder.arrays():
        return folder
    is_spelled_folder = split_path(location.url)[0].endswith("/")
    return folder if is_spelled_folder and folder.groups() else None


def _store(location: Location) -> Place | None:
    members = list_members(location)
    if members is None:
        return None
    for member in members:
        if _SEALED in member.what:
            raise _sealed(location.label, member.key)
    return StoreLevel(location, tuple(m.key for m in members if m.what.startswith("array")))


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
    if place.inside(name).read_manifest() is None:
        problem = f"{MANIFEST} names the group {name!r}, which does not exist"
        raise FrameFormatError(problem, path=place.label)


def in_group(place: Place, group: str) -> Place:
    """The place of a group, given as a path such as ``"model/run1"``.

    Raises FileNotFoundError if there is no such group; the message lists the existing ones.
    """
    part, _, rest = group.strip("/").partition("/")
    if not part:
        return place
    if part not in place.groups():
        if isinstance(place, Folder) and place.location.is_web and part not in (".", ".."):
            # a web server cannot list groups: any name is accepted, if the last one has a manifest
            is_there = bool(rest) or place.inside(part).read_manifest() is not None
        elif is_there := part in manifest_of(place).groups:
            _require_group(place, part)
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


def open_snapshot(
    source: Any, storage_options: Mapping[str, Any] | None, build: Callable[[], _Opened]
) -> _Opened:
    """Open a dataset; retry if it was replaced during the opening.

    Manifest and frames are opened one after the other, by name. Afterwards each opened frame raises
    StaleFrameError if it changes. Raises BlockingIOError if each attempt was in vain.
    """
    if not isinstance(source, str | os.PathLike):
        return build()
    location = Location.of(split_store(source)[0], storage_options=storage_options)
    for _ in range(_TRIES):
        before = _version(location)
        try:
            found = build()
        except (B2ndError, OSError):
            if _version(location) == before:
                raise
            continue
        if _version(location) == before:
            return found
    problem = "it is replaced again and again while it is opened; try again"
    raise BlockingIOError(errno.EAGAIN, problem, location.label)


def _version(location: Location) -> Identity | None:
    """Identity of the file that every write of a dataset replaces: the archive or the manifest."""
    if location.is_url and not is_named_store(location):
        return None
    with opened(inside(location, MANIFEST) if is_folder(location) else location) as reader:
        return None if reader is None else reader.opened_identity()
