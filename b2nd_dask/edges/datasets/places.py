"""Where the arrays of a dataset lie: a directory, a level of a store, with what is beside them.

`open_snapshot` opens manifest and frames of a dataset in one version of it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypeVar

from b2nd_dask.errors import B2ndError, StaleFrameError, UnsupportedFrameError, locating
from b2nd_dask.format.labels.manifest import MANIFEST, MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from b2nd_dask.frame.access import frame_at, locate
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.files import (
    ARRAY,
    EMBED,
    inside,
    is_folder,
    is_key,
    is_named_store,
    is_plain_folder,
    opened,
    path_of,
    some_of,
)
from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.members.store import locate_member, open_store
from b2nd_dask.storage import (
    MAIN_MEMBER,
    Identity,
    Location,
    Span,
    is_zip,
    matches_of,
    printable,
    split_store,
)

_SEALED = (".b2enc",)
#: To open a dataset that others change meanwhile.
_TRIES = 20
_Opened = TypeVar("_Opened")


@dataclass(frozen=True)
class OpenOptions:
    """Which frames are opened, and how."""

    uninit: Any = None
    """As for `open_b2nd`, as is `verify`."""
    verify: Any = "auto"
    dropped: frozenset[str] = frozenset()
    """Variables that are left out."""
    own_dims: bool = False
    """Whether arrays that name no dims get ones of their own, also where their lengths agree."""

    @property
    def of_coordinates(self) -> OpenOptions:
        """The same for coordinates, whose dtypes need not have the value of `uninit`."""
        return self if isinstance(self.uninit, str) else replace(self, uninit=None)

    def open(self, location: Location) -> Frame:
        """Open the frame at a location."""
        return Frame(frame_at(location, None, self.uninit, self.verify))


def manifest_of(place: Place) -> Manifest:
    """Parse what `dataset.json` says of the frames here."""
    raw = place.read(MANIFEST)
    if raw is None:
        return Manifest()
    with locating(path=f"{place.label.rstrip('/')}/{MANIFEST}"):
        return parse_manifest(raw)


@dataclass(frozen=True)
class Folder:
    """A directory of frames, on a disk or in an object store."""

    location: Location

    @property
    def label(self) -> str:
        """Path or URL for messages."""
        return self.location.label

    def arrays(self) -> list[str] | None:
        """Names of the frames here."""
        names = self.names
        if names is None:
            return None
        sealed = [name for name in names if name.endswith(_SEALED)]
        if sealed:
            raise _sealed(self.label, sealed[0])
        return sorted(name.removesuffix(ARRAY) for name in names if name.endswith(ARRAY))

    def groups(self) -> list[str]:
        """Names of the places inside."""
        if self.location.is_url:
            names = [url.rstrip("/").split("/")[-2] for url in self._listed(f"*/*{ARRAY}") or ()]
            return sorted({name for name in names if not name.startswith(".")})
        root = Path(self.location.url)
        return sorted(each.name for each in root.iterdir() if _is_group(each))

    def inside(self, group: str) -> Folder:
        """The directory of a group."""
        return Folder(inside(self.location, group))

    def locate(self, name: str) -> Location:
        """Where the frame of a name lies."""
        return inside(self.location, name + ARRAY)

    def read(self, name: str) -> bytes | None:
        """A small file that lies here; None where there is none."""
        with opened(inside(self.location, name)) as reader:
            if reader is None:
                return None
            size = reader.opened_identity().size
            (data,) = reader.read([Span(0, min(size, MAX_MANIFEST_NBYTES + 1))])
            return bytes(data)

    @cached_property
    def names(self) -> list[str] | None:
        """Names of the files and folders here; None where the server does not list."""
        if not self.location.is_url:
            names = (path.name for path in Path(self.location.url).iterdir())
            return [name for name in names if not name.startswith(".")]
        found = self._listed("*")
        if found is None:
            return None
        return [url.partition("?")[0].rstrip("/").rpartition("/")[2] for url in found]

    def _listed(self, pattern: str) -> list[str] | None:
        """URLs that match a pattern here; None where the server does not list."""
        if self.location.url.startswith(("http://", "https://")):
            return None
        try:
            return matches_of(inside(self.location, pattern).url, self.location.storage_options)
        except FileNotFoundError:
            return []


def _is_group(path: Path) -> bool:
    """Whether a directory holds frames, and is none."""
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
    """Of all arrays in the store, sorted."""
    group: str = ""

    @property
    def label(self) -> str:
        """Path or URL for messages."""
        return f"{self.store.label}{printable(self.group)}"

    def arrays(self) -> list[str]:
        """Names of the frames here."""
        return sorted(rest for rest in self._rests() if "/" not in rest)

    def groups(self) -> list[str]:
        """Names of the places inside."""
        return sorted({rest.partition("/")[0] for rest in self._rests() if "/" in rest})

    def inside(self, group: str) -> StoreLevel:
        """The level of a group."""
        return replace(self, group=f"{self.group}/{group}")

    def locate(self, name: str) -> Location:
        """Where the frame of a name lies."""
        key = f"{self.group}/{name}"
        if not is_key(key):
            # who packed the store chose it
            raise UnsupportedFrameError(
                f"a member has the key {printable(key)!r}, by which no frame is found: "
                "python-blosc2 can give it another one",
                path=self.label,
            )
        return locate_member(self.store, key)

    def read(self, name: str) -> bytes | None:
        """A small file that lies here; None where there is none."""
        inner = f"{self.group}/{name}".lstrip("/")
        with open_store(self.store) as store:
            return store.read(inner, MAX_MANIFEST_NBYTES)

    def _rests(self) -> Iterable[str]:
        prefix = f"{self.group}/"
        first = bisect_left(self.keys, prefix)
        inside_it = takewhile(lambda key: key.startswith(prefix), islice(self.keys, first, None))
        return (key.removeprefix(prefix) for key in inside_it)


Place = Folder | StoreLevel
"""A directory, or a level of a store."""


def place_of(location: Location) -> Place | None:
    """The place at a location; None where there is a frame."""
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
            # a web server lists nothing: its manifest has to
            if reader is not None and folder.arrays() is not None:
                return _store(location)
        return folder
    if folder.read(MANIFEST) is not None or folder.arrays():
        return folder
    is_spelled_folder = location.url.partition("?")[0].endswith("/")
    return folder if is_spelled_folder and folder.groups() else None


def _store(location: Location) -> Place | None:
    members = list_members(location)
    if members is None:
        return None
    sealed = [member.key for member in members if _SEALED[0] in member.what]
    if sealed:
        raise _sealed(location.label, sealed[0])
    return StoreLevel(location, tuple(m.key for m in members if m.what.startswith("array")))


def _sealed(label: str, name: str) -> UnsupportedFrameError:
    return UnsupportedFrameError(
        f"{printable(name)} is encrypted by xarray-blosc2, which opens it: "
        "xarray_blosc2.open(PATH, key=KEY)",
        path=label,
    )


def in_group(place: Place, group: str) -> Place:
    """Go to a group, given as a path such as ``"model/run1"``.

    Raises
    ------
    FileNotFoundError
        There is none of that name; those that are there are listed.
    """
    for part in filter(None, group.split("/")):
        known = place.groups()
        # of a web server nothing is listed
        if part not in known and (part in (".", "..") or place.arrays() is not None):
            raise FileNotFoundError(
                f"{place.label}: no group {part!r} here; groups: {some_of(known) or 'none'}"
            )
        place = place.inside(part)
    return place


def location_of(source: Any, storage_options: Mapping[str, Any] | None) -> tuple[Location, str]:
    """Location of what a user names, and the group where it goes on inside of a store."""
    if isinstance(source, str | os.PathLike):
        path, key = split_store(source)
        if key is not None:
            location = Location.of(path, storage_options=storage_options)
            store = place_of(location)
            if isinstance(store, StoreLevel) and any(k.startswith(f"/{key}/") for k in store.keys):
                return location, key
    return locate(source, 0, storage_options), ""


def open_snapshot(
    source: Any, storage_options: Mapping[str, Any] | None, build: Callable[[], _Opened]
) -> _Opened:
    """Open a dataset; open it again if it was replaced meanwhile.

    Manifest and frames are opened one after the other, by their names. Once it is open, each frame
    raises StaleFrameError when it changes.

    Parameters
    ----------
    source : path, URL or object
        What the user names.
    build : callable
        Opens it.

    Raises
    ------
    StaleFrameError
        It is replaced again and again.
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
    raise StaleFrameError("it is replaced again and again while it is opened", path=location.label)


def _version(location: Location) -> Identity | None:
    """Identity of what every writer of a dataset replaces: its one file, or its manifest."""
    if location.is_url:
        if not is_named_store(location):
            return None
        is_file = not is_folder(location)
    else:
        is_file = Path(location.url).is_file()
    with opened(location if is_file else inside(location, MANIFEST)) as reader:
        return None if reader is None else reader.opened_identity()
