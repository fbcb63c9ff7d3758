"""What a store holds, and patterns that go on inside of stores, such as ``run*.b2z/warm/rain``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from b2nd_dask.errors import B2ndError, UnsupportedFrameError
from b2nd_dask.frame.members.files import (
    ARRAY,
    EMBED,
    MAX_KEY,
    MAX_PARTS,
    OTHERS,
    files,
    inside,
    is_folder,
    is_key,
    is_plain_folder,
    is_store,
    is_too_long,
    key_of,
    require_inside,
    some_keys,
    what_by_name,
    what_of,
    zip_list,
)
from b2nd_dask.frame.members.locate import StoredArray, locate_member
from b2nd_dask.frame.open.embedded import EmbeddedReader, EmbedStore
from b2nd_dask.storage import (
    ByteReader,
    Location,
    is_zip,
    matches_of,
    member_offset,
    natural_key,
    split_store,
)

#: For which keys to say what the member is, which may take a read.
_Wanted = Callable[[str], bool]
_MARKS = re.compile(r"[*?\[]")
_WEB = re.compile(r"(.*::)?https?://")
#: What a pattern passes over; what may be an array and cannot be read is an error of its own.
_NO_ARRAYS = (*OTHERS.values(), "another file")


@dataclass(frozen=True)
class Member:
    """A member of a store."""

    key: str
    what: str
    """Such as ``"array 3 x 4, float64"``; empty where that is not asked for."""
    nbytes: int | None
    """As they are stored; None where nothing is."""

    @classmethod
    def of(cls, key: str, what: str, nbytes: int | None) -> Self:
        """Make a member of what a store says of it, which may be no key."""
        what = what if is_key(key) or not what else f"{what}; its key does not open it"
        return cls(key, what, nbytes)


def list_members(location: Location, wanted: _Wanted = lambda _: True) -> list[Member] | None:
    """List the members of a store, sorted by key; None where a location holds none."""
    if isinstance(location.urlpath, bytes) or location.offset or location.member:
        return None
    if is_folder(location):
        return sorted(_of_folder(location, wanted), key=_by_key) if is_store(location) else None
    with closing(location.open()) as reader:
        if is_zip(reader):
            return sorted(_of_zip(location, reader, wanted), key=_by_key)
        try:
            store = EmbedStore.of(reader, location)
        except B2ndError:
            return None  # a frame, or nothing that opens
        return sorted(_of_embed_store(store, wanted), key=_by_key)


def _by_key(member: Member) -> str:
    return member.key


def _of_folder(location: Location, wanted: _Wanted) -> Iterator[Member]:
    for name in files(location):
        nbytes = None if location.is_url else Path(location.url, name).lstat().st_size
        key = key_of(name)
        yield Member.of(key, what_by_name(name) if wanted(key) else "", nbytes)
    embed = inside(location, EMBED)
    require_inside(location, embed, EMBED)
    with closing(embed.open()) as reader:
        yield from _of_embed_store(EmbedStore.of(reader, embed), wanted)


def _of_zip(location: Location, reader: ByteReader, wanted: _Wanted) -> Iterator[Member]:
    for name, member in zip_list(location, reader).items():
        if name == EMBED:
            at = replace(location, offset=member_offset(reader, member))
            with closing(at.open()) as own:
                yield from _of_embed_store(EmbedStore.of(own, at), wanted)
        elif not name.endswith("/"):
            how = "" if member.is_plain else ", compressed by ZIP: cannot be read in place"
            key = key_of(name)
            what = what_by_name(name) + how if wanted(key) else ""
            yield Member.of(key, what, member.nbytes)


def _of_embed_store(store: EmbedStore, wanted: _Wanted) -> Iterator[Member]:
    # many keys may have the bytes of one member
    known: dict[tuple[int, int], str] = {}
    for key in store.entries:
        nbytes, what = None, ""
        try:
            at = store.range_of(key)
            nbytes = at[1]
            if wanted(key):
                what = known[at] = known.get(at) or what_of(EmbeddedReader(store, key, key))
        except UnsupportedFrameError:
            what = "a C2Array: an address on a server"
        except B2ndError as error:
            what = f"damaged: {error.problem}"
        yield Member.of(key, what if wanted(key) else "", nbytes)


def members_matching(
    urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[StoredArray | str] | None:
    """Expand a pattern for arrays in stores.

    As in paths, ``*`` matches inside of one part of a key, and ``**`` any number of parts. A store
    or a key of this very name comes first.

    Returns
    -------
    list of StoredArray or str, or None
        Arrays of stores, naturally sorted; and paths, where a folder only has the name of a store.
        Empty for the key of one member, whose name only looks like a pattern; None where this is
        no pattern in a store.

    Raises
    ------
    FileNotFoundError
        Nothing matches.
    ValueError
        The store cannot be listed.
    UnsupportedFrameError
        What matches has a key that is none.
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
            # a file of the very name, as where there is no pattern
            found.append(own.url)
        else:
            found += [StoredArray(store, each) for each in keys or [key]]
    return found


def _keys_in(store: Location, pattern: str) -> list[str] | None:
    """Keys that match; None where the pattern is a key."""
    if not _MARKS.search(pattern):
        return None
    if is_folder(store) and _WEB.match(store.url):
        raise ValueError(
            f"{store.label}: what is in a folder of a web server is not known for certain: pass a "
            "list of paths, STORE/KEY for each member"
        )
    key = pattern.removesuffix(ARRAY)
    parts = key.split("/")
    # a store of some hundred bytes may have very many keys, and to open each takes long
    members = list_members(store, lambda each: _matches(each, parts))
    if members is None or any(member.key == f"/{key}" for member in members):
        locate_member(store, pattern)  # says what is wrong with a store that is none
        return None
    _require_short(store, members)
    arrays = {m.key for m in members if m.what and not m.what.startswith(_NO_ARRAYS)}
    found = sorted(arrays, key=natural_key)
    if not found:
        raise FileNotFoundError(
            f"{store.label}: no array matches /{key} in this store, "
            f"which has {some_keys([member.key for member in members])}"
        )
    wrong = [each for each in found if not is_key(each)]
    if wrong:
        raise UnsupportedFrameError(
            f"/{key} matches what has no key to open it by: {some_keys(wrong)}; "
            "python-blosc2 can give it another one, and a narrower pattern leaves it out",
            path=store.label,
        )
    return found


def _require_short(store: Location, members: Sequence[Member]) -> None:
    """Check that all keys can be matched: one must not be left out, nor take hours."""
    long = [len(member.key) for member in members if is_too_long(member.key)]
    if long:
        raise UnsupportedFrameError(
            f"a key has {max(long)} characters, and patterns are for stores with keys of at most "
            f"{MAX_KEY}, in {MAX_PARTS} parts: pass the keys of members instead",
            path=store.label,
        )


def _matches(key: str, patterns: Sequence[str]) -> bool:
    if is_too_long(key):
        return False
    parts = key.removeprefix("/").split("/")
    # how many parts the patterns so far may take
    ends = {0}
    for pattern in patterns:
        if pattern == "**":
            ends = set(range(min(ends, default=len(parts) + 1), len(parts) + 1))
        else:
            ends = {n + 1 for n in ends if n < len(parts) and fnmatchcase(parts[n], pattern)}
    return len(parts) in ends
