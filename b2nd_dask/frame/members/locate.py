"""Where in a store the frame of a key lies."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

from b2nd_dask.errors import B2ndError, FrameFormatError, UnsupportedFrameError
from b2nd_dask.frame.members.files import (
    ARRAY,
    EMBED,
    OTHERS,
    files,
    inside,
    is_folder,
    key_of,
    opened,
    plain_key,
    require_inside,
    some_keys,
    what_of,
    zip_list,
)
from b2nd_dask.frame.open.embedded import EmbeddedReader, EmbedStore
from b2nd_dask.frame.open.opening import read_header
from b2nd_dask.storage import ByteReader, Location, is_zip, member_offset, printable


@dataclass(frozen=True)
class StoredArray:
    """An array of a store, by its key there."""

    store: Location
    key: str


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
    if not isinstance(key, str):
        raise TypeError(f"component is the key of a member, not a {type(key).__name__}")
    plain = plain_key(key)
    if isinstance(location.urlpath, bytes) or location.offset:
        raise ValueError(f"{location.label}: component= needs the path or URL of a store")
    try:
        if is_folder(location):
            return _in_folder(location, plain)
        with closing(location.open()) as reader:
            if is_zip(reader):
                return _in_zip(location, reader, plain)
            return _embedded(location, EmbedStore.of(reader, location), plain)
    except B2ndError as error:
        raise error.located(path=location.label) from error.__cause__


def _in_folder(location: Location, key: str) -> Location:
    found = inside(location, key + ARRAY)
    require_inside(location, found, f"/{key}")
    with opened(found) as reader:
        if reader is not None:
            return found
    embed = inside(location, EMBED)
    require_inside(location, embed, EMBED)
    with opened(embed) as reader:
        if reader is not None:
            store = EmbedStore.of(reader, embed)
            if f"/{key}" in store.entries:
                return _embedded(embed, store, key)
            known = [*store.entries]
        elif location.is_url:
            raise FileNotFoundError(f"{location.label}: there is no {EMBED}: not a store")
        else:
            raise FrameFormatError(f"a folder without {EMBED} is no store of python-blosc2")
    for suffix, what in OTHERS.items():
        with opened(inside(location, key + suffix)) as reader:
            if reader is not None:
                raise _no_array(key, what)
    raise _absent(location, key, [*known, *map(key_of, files(location))])


def _in_zip(location: Location, reader: ByteReader, key: str) -> Location:
    members = zip_list(location, reader)
    found = members.get(key + ARRAY)
    if found is not None:
        offset = member_offset(reader, found)
        at = replace(location, offset=offset, member=f"/{key}")
        # its frame must end where the archive says
        with closing(at.open()) as own:
            try:
                read_header(own, found.nbytes)
            except B2ndError as error:
                raise error.located(path=at.label) from error.__cause__
        return at
    for suffix, what in OTHERS.items():
        if key + suffix in members:
            raise _no_array(key, what)
    known = [key_of(name) for name in members if name != EMBED]
    if EMBED in members:
        at = replace(location, offset=member_offset(reader, members[EMBED]))
        with closing(at.open()) as own:
            store = EmbedStore.of(own, at)
            if f"/{key}" in store.entries:
                return _embedded(at, store, key)
            known += store.entries
    raise _absent(location, key, known)


def _embedded(location: Location, store: EmbedStore, key: str) -> Location:
    found = replace(location, member=f"/{key}", embedded=True)
    if found.member not in store.entries:
        raise _absent(location, key, store.entries)
    what = what_of(EmbeddedReader(store, found.member, found.label))
    if not what.startswith("array"):
        raise _no_array(key, what)
    return found


def _no_array(key: str, what: str) -> UnsupportedFrameError:
    return UnsupportedFrameError(
        f"/{printable(key)} is {what}, not an array: open it with python-blosc2"
    )


def _absent(location: Location, key: str, known: Iterable[str]) -> Exception:
    """The error for a key that no member has."""
    keys = sorted(set(known))
    group = [name for name in keys if name.startswith(f"/{key}/")]
    if group:
        return UnsupportedFrameError(
            f"/{printable(key)} is a group; pass one of its members: {some_keys(group)}"
        )
    return FileNotFoundError(
        f"{location.label}: no member /{printable(key)} in this store, which has {some_keys(keys)}"
    )
