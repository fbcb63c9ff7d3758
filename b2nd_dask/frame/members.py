"""Members of the stores of python-blosc2: where the frame of a key lies, and what there is.

A ``.b2d`` is a folder, a ``.b2z`` the same folder as a ZIP archive: large members are files,
``KEY.b2nd`` for arrays; the small ones are in its embed store, ``embed.b2e``. A ``.b2e`` is an
embed store alone (docs/format.md, Stores).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from b2nd_dask.errors import B2ndError, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.array_meta import array_meta_of
from b2nd_dask.frame.open.embedded import EmbeddedReader, EmbedStore
from b2nd_dask.frame.open.opening import read_header
from b2nd_dask.storage import (
    ByteReader,
    Location,
    is_zip,
    matches_of,
    member_offset,
    zip_members,
)

_EMBED = "embed.b2e"
_ARRAY = ".b2nd"
#: What the other files of a store hold, by how they end.
_OTHERS = {".b2f": "an SChunk", ".b2b": "a BatchArray"}
#: Keys that an error lists, at most.
_LISTED = 10


@dataclass(frozen=True)
class Member:
    """A member of a store."""

    key: str
    what: str
    """Such as ``"array 3 x 4, float64"``."""
    nbytes: int | None
    """As they are stored; None where nothing is."""


def locate_member(location: Location, key: str) -> Location:
    """Find the frame of an array in a store.

    Parameters
    ----------
    location : Location
        Of the store.
    key : str
        As python-blosc2 has it, with or without the slash in front and the suffix of its file.

    Raises
    ------
    FileNotFoundError
        There is no store, or no such member.
    UnsupportedFrameError
        The member is no array, or cannot be read in place.
    FrameFormatError
        The store is damaged, or no store.
    """
    plain = _plain_key(key)
    if isinstance(location.urlpath, bytes) or location.offset:
        raise ValueError(f"{location.label}: component= needs the path or URL of a store")
    try:
        if _is_folder(location):
            return _in_folder(location, plain)
        with closing(location.open()) as reader:
            if is_zip(reader):
                return _in_zip(location, reader, plain)
            return _embedded(location, EmbedStore.of(reader), plain)
    except B2ndError as error:
        raise error.located(path=location.label) from error.__cause__


def list_members(location: Location) -> list[Member] | None:
    """List the members of a store, sorted by key; None where a location holds none."""
    if isinstance(location.urlpath, bytes) or location.offset or location.member:
        return None
    if _is_folder(location):
        return sorted(_of_folder(location), key=lambda m: m.key) if _is_store(location) else None
    with closing(location.open()) as reader:
        if is_zip(reader):
            return sorted(_of_zip(location, reader), key=lambda member: member.key)
        try:
            store = EmbedStore.of(reader)
        except B2ndError:
            return None  # a frame, or nothing that opens
        return sorted(_of_embed_store(store), key=lambda member: member.key)


def _plain_key(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"component is the key of a member, not a {type(key).__name__}")
    plain = key.strip("/").removesuffix(_ARRAY)
    if not plain or any(part in ("", ".", "..") for part in plain.split("/")) or "\0" in plain:
        raise ValueError(f"component={key!r} is no key: give one such as '/group/x'")
    return plain


def _is_folder(location: Location) -> bool:
    if location.is_url:
        return location.url.partition("?")[0].rstrip("/").endswith(".b2d")
    return os.path.isdir(location.url)  # noqa: PTH112 - Path's raises where it may not look


def _is_store(location: Location) -> bool:
    return location.is_url or Path(location.url, _EMBED).exists()


def _inside(location: Location, name: str) -> Location:
    """A file in the folder of a store."""
    path, mark, query = location.url, "", ""
    if location.is_url:
        path, mark, query = path.partition("?")
    return replace(location, urlpath=f"{path.rstrip('/')}/{name}{mark}{query}")


def _require_inside(location: Location, found: Location, name: str) -> None:
    """Check that a file of a store is no link out of it: who packed the store chose its target."""
    if location.is_url:
        return
    root, own = (os.path.realpath(path) for path in (location.url, found.url))
    if os.path.commonpath([root, own]) != root:
        raise UnsupportedFrameError(f"{name} is a link to a file outside of the store")


@contextmanager
def _opened(location: Location) -> Iterator[ByteReader | None]:
    """Open an object that need not be there."""
    try:
        reader = location.open()
        reader.opened_identity()
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    with closing(reader):
        yield reader


def _in_folder(location: Location, key: str) -> Location:
    found = _inside(location, key + _ARRAY)
    _require_inside(location, found, f"/{key}")
    with _opened(found) as reader:
        if reader is not None:
            return found
    embed = _inside(location, _EMBED)
    _require_inside(location, embed, _EMBED)
    with _opened(embed) as reader:
        if reader is not None:
            store = EmbedStore.of(reader)
            if f"/{key}" in store.entries:
                return _embedded(embed, store, key)
            known = [*store.entries]
        elif location.is_url:
            raise FileNotFoundError(f"{location.label}: there is no {_EMBED}: not a store")
        else:
            raise FrameFormatError(f"a folder without {_EMBED} is no store of python-blosc2")
    for suffix, what in _OTHERS.items():
        with _opened(_inside(location, key + suffix)) as reader:
            if reader is not None:
                raise _no_array(key, what)
    raise _absent(location, key, [*known, *map(_key_of, _files(location))])


def _in_zip(location: Location, reader: ByteReader, key: str) -> Location:
    members = zip_members(reader)
    found = members.get(key + _ARRAY)
    if found is not None:
        offset = member_offset(reader, found)
        inside = replace(location, offset=offset, member=f"/{key}")
        # its frame must end where the archive says
        with closing(inside.open()) as own:
            try:
                read_header(own, found.nbytes)
            except B2ndError as error:
                raise error.located(path=inside.label) from error.__cause__
        return inside
    for suffix, what in _OTHERS.items():
        if key + suffix in members:
            raise _no_array(key, what)
    known = [_key_of(name) for name in members if name != _EMBED]
    if _EMBED in members:
        at = replace(location, offset=member_offset(reader, members[_EMBED]))
        with closing(at.open()) as own:
            store = EmbedStore.of(own)
            if f"/{key}" in store.entries:
                return _embedded(at, store, key)
            known += store.entries
    raise _absent(location, key, known)


def _embedded(location: Location, store: EmbedStore, key: str) -> Location:
    found = replace(location, member=f"/{key}", embedded=True)
    if found.member not in store.entries:
        raise _absent(location, key, store.entries)
    what = _what_of(EmbeddedReader(store, found.member, found.label))
    if not what.startswith("array"):
        raise _no_array(key, what)
    return found


def _no_array(key: str, what: str) -> UnsupportedFrameError:
    return UnsupportedFrameError(f"/{key} is {what}, not an array: open it with python-blosc2")


def _absent(location: Location, key: str, known: Iterable[str]) -> Exception:
    """The error for a key that no member has."""
    keys = sorted(set(known))
    inside = [name for name in keys if name.startswith(f"/{key}/")]
    listed = ", ".join((inside or keys)[:_LISTED]) or "nothing"
    more = ", ..." if len(inside or keys) > _LISTED else ""
    if inside:
        return UnsupportedFrameError(f"/{key} is a group; pass one of its members: {listed}{more}")
    return FileNotFoundError(
        f"{location.label}: no member /{key} in this store, which has {listed}{more}"
    )


def _key_of(name: str) -> str:
    return "/" + os.path.splitext(name)[0]  # noqa: PTH122 - a name in an archive is no path


def _what_of(reader: ByteReader) -> str:
    """Say what the frame of a member is."""
    try:
        _, header = read_header(reader, reader.opened_identity().size)
    except UnsupportedFrameError as error:
        return error.problem
    if not {"b2nd", "caterva"} & header.metalayers.keys():
        return _kind_of(header.metalayers)
    try:
        meta = array_meta_of(header.metalayers)
    except UnsupportedFrameError as error:
        return error.problem
    shape = " x ".join(map(str, meta.shape)) or "of one element"
    return f"array {shape}, {meta.dtype or f'V{header.typesize}'}"


def _kind_of(metalayers: Any) -> str:
    others = ", ".join(sorted(metalayers))
    return f"an SChunk ({others})" if others else "an SChunk"


def _files(location: Location) -> Iterator[str]:
    """Names of the files of a store that is a folder, as far as the place lists folders."""
    root = location.url
    if location.is_url:
        root = root.partition("?")[0].rstrip("/")
        with suppress(FileNotFoundError):
            for url in matches_of(f"{root}/**/*.b2*", location.storage_options) or ():
                name = url.rpartition(f"{root.rpartition('/')[2]}/")[2]
                if name != _EMBED:
                    yield name
        return
    for folder, _, names in os.walk(root):
        for name in names:
            found = os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118
            if found != _EMBED:
                yield found


def _of_folder(location: Location) -> Iterator[Member]:
    for name in _files(location):
        nbytes = None if location.is_url else Path(location.url, name).lstat().st_size
        yield Member(_key_of(name), _what_by_name(name), nbytes)
    embed = _inside(location, _EMBED)
    _require_inside(location, embed, _EMBED)
    with closing(embed.open()) as reader:
        yield from _of_embed_store(EmbedStore.of(reader))


def _of_zip(location: Location, reader: ByteReader) -> Iterator[Member]:
    for name, member in zip_members(reader).items():
        if name == _EMBED:
            with closing(replace(location, offset=member_offset(reader, member)).open()) as own:
                yield from _of_embed_store(EmbedStore.of(own))
        elif not name.endswith("/"):
            how = "" if member.is_plain else ", compressed by ZIP: cannot be read in place"
            yield Member(_key_of(name), _what_by_name(name) + how, member.nbytes)


def _what_by_name(name: str) -> str:
    suffix = os.path.splitext(name)[1]  # noqa: PTH122
    return "array" if suffix == _ARRAY else _OTHERS.get(suffix, f"another file, {name}")


def _of_embed_store(store: EmbedStore) -> Iterator[Member]:
    for key in store.entries:
        nbytes = None
        try:
            nbytes = store.range_of(key)[1]
            what = _what_of(EmbeddedReader(store, key, key))
        except UnsupportedFrameError:
            what = "a C2Array: an address on a server"
        except B2ndError as error:
            what = f"damaged: {error.problem}"
        yield Member(key, what, nbytes)
