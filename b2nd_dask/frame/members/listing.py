"""List the members of a store; expand patterns, also into stores as ``run*.b2z/warm/rain``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from b2nd_dask.errors import B2ndError, UnsupportedFrameError
from b2nd_dask.frame.members.store import (
    ARRAY,
    OTHERS,
    Store,
    StoredArray,
    inside,
    is_folder,
    is_key,
    is_plain_folder,
    key_of,
    locate_member,
    open_store,
    some_of,
    what_by_name,
    what_of,
)
from b2nd_dask.frame.open.embedded import EmbedStore
from b2nd_dask.storage import Location, matches_of, natural_key, split_store

#: Selects the keys of the members to describe; each description may need a read.
_Wanted = Callable[[str], bool]
_MARKS = re.compile(r"[*?\[]")
#: Members that a pattern skips. An unreadable member, which may be an array, raises its error.
_NO_ARRAYS = (*OTHERS.values(), "another file")
#: Most characters and parts of a key for a pattern; paths of file systems have no more.
_MAX_KEY, _MAX_PARTS = 4096, 256


@dataclass(frozen=True)
class Member:
    """A member of a store."""

    key: str
    what: str
    """Such as ``"array 3 x 4, float64"``; empty if not requested."""
    nbytes: int | None
    """Stored bytes; None if nothing is stored."""


def list_members(location: Location, wanted: _Wanted = lambda _: True) -> list[Member] | None:
    """List the members of a store, sorted by key; None if a location is not a store."""
    if isinstance(location.urlpath, bytes) or location.offset or location.member:
        return None
    with open_store(location) as store:
        try:
            embed = store.embed
        except B2ndError:
            if store.is_embed_store:
                return None  # a frame, or nothing that opens
            raise
        if embed is None and store.is_folder:
            return None
        return sorted(_members(store, wanted), key=attrgetter("key"))


def _members(store: Store, wanted: _Wanted) -> Iterator[Member]:
    for name, nbytes, is_plain in store.files():
        note = "" if is_plain else ", compressed by ZIP: cannot be read in place"
        yield _member(key_of(name), what_by_name(name) + note, nbytes, wanted)
    if store.embed:
        yield from _embedded(store.embed, wanted)


def _embedded(store: EmbedStore, wanted: _Wanted) -> Iterator[Member]:
    # many keys may share the bytes of one member
    known: dict[tuple[int, int], str] = {}
    for key in store.entries:
        nbytes, what = None, ""
        try:
            at = store.range_of(key)
            nbytes = at[1]
            if wanted(key):
                what = known[at] = known.get(at) or what_of(store.frame_of(key, key))
        except UnsupportedFrameError:
            what = "a C2Array: an address on a server"
        except B2ndError as error:
            what = f"damaged: {error.problem}"
        yield _member(key, what, nbytes, wanted)


def _member(key: str, what: str, nbytes: int | None, wanted: _Wanted) -> Member:
    if not wanted(key):
        what = ""
    elif not is_key(key):
        what += "; its key does not open it"
    return Member(key, what, nbytes)


def members_matching(
    urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[StoredArray | str] | None:
    """Expand a pattern of arrays in stores: arrays, naturally sorted, and paths of folders.

    As in paths, ``*`` matches inside one part of a key, and ``**`` any number of parts. A store or
    a key with this literal name takes precedence. The result has paths for folders that have only
    the name of a store. It is empty if the pattern is the literal key of one member, None if it is
    not a pattern in a store.

    Raises `FileNotFoundError` if nothing matches, `ValueError` if the store cannot be listed,
    `UnsupportedFrameError` if a matching member has an invalid key.
    """
    if not _MARKS.search(os.fsdecode(urlpath)):
        return None
    location = Location.of(urlpath, storage_options=storage_options)
    name, key = split_store(location.url)
    if key is None or (location.is_url and "*" not in location.url):
        return None
    names = matches_of(name, storage_options)
    stores = [replace(location, urlpath=each) for each in ([name] if names is None else names)]
    if all(map(is_plain_folder, stores)):
        return None
    found: list[StoredArray | str] = []
    for store in stores:
        own = inside(store, key)
        if is_plain_folder(store):
            found += matches_of(own.url) or [own.url]
            continue
        keys = _keys_in(store, key)
        if keys is None and names is None:
            return []
        if keys is None and not store.is_url and os.path.lexists(own.url):
            # a file with this literal name, as without a pattern
            found.append(own.url)
        else:
            found += [StoredArray(store, each) for each in keys or [key]]
    return found


def _keys_in(store: Location, pattern: str) -> list[str] | None:
    """List the keys that match; None if the pattern itself is a key."""
    if not _MARKS.search(pattern):
        return None
    if is_folder(store) and store.is_web:
        raise ValueError(
            f"{store.label}: a web server does not list its folders reliably: pass a list of "
            "paths, STORE/KEY for each member"
        )
    key = pattern.removesuffix(ARRAY)
    parts = key.split("/")
    # a store of some hundred bytes may have very many keys, and opening each takes long
    members = list_members(store, lambda each: _matches(each, parts))
    if members is None or any(member.key == f"/{key}" for member in members):
        locate_member(store, pattern)  # raises an error that explains why it is not a store
        return None
    long = [len(member.key) for member in members if _is_long(member.key)]
    if long:
        # it must neither be omitted nor take hours
        raise UnsupportedFrameError(
            f"a key has {max(long)} characters, and patterns support keys of at most {_MAX_KEY} "
            f"characters in {_MAX_PARTS} parts: pass the keys of members instead",
            path=store.label,
        )
    arrays = {m.key for m in members if m.what and not m.what.startswith(_NO_ARRAYS)}
    found = sorted(arrays, key=natural_key)
    if not found:
        raise FileNotFoundError(
            f"{store.label}: no array matches /{key} in this store, "
            f"which has {some_of([member.key for member in members]) or 'nothing'}"
        )
    wrong = [each for each in found if not is_key(each)]
    if wrong:
        raise UnsupportedFrameError(
            f"/{key} matches members whose keys do not open them: {some_of(wrong)}; "
            "rename them with python-blosc2, or pass a narrower pattern",
            path=store.label,
        )
    return found


def _matches(key: str, patterns: Sequence[str]) -> bool:
    if _is_long(key):
        return False
    parts = key.removeprefix("/").split("/")
    # possible numbers of parts that the previous patterns match
    ends = {0}
    for pattern in patterns:
        if pattern == "**":
            ends = set(range(min(ends, default=len(parts) + 1), len(parts) + 1))
        else:
            ends = {n + 1 for n in ends if n < len(parts) and fnmatchcase(parts[n], pattern)}
    return len(parts) in ends


def _is_long(key: str) -> bool:
    return len(key) > _MAX_KEY or key.count("/") > _MAX_PARTS


def sources_of(given: Any, storage_options: Mapping[str, Any] | None = None) -> list[Any] | None:
    """List the frames of a list or a pattern; None for the path of one frame.

    Raises `FileNotFoundError` if nothing matches the pattern, `ValueError` if the list is empty.
    """
    if isinstance(given, str | os.PathLike):
        in_stores = members_matching(given, storage_options)
        return matches_of(given, storage_options) if in_stores is None else in_stores or None
    if not isinstance(given, list | tuple):
        return None
    if not given:
        raise ValueError("an empty list; from_b2nd needs at least one frame")
    return list(given)
