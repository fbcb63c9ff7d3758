"""What a store holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from b2nd_dask.errors import B2ndError, UnsupportedFrameError
from b2nd_dask.frame.members.files import (
    EMBED,
    files,
    inside,
    is_folder,
    is_key,
    is_store,
    key_of,
    require_inside,
    what_by_name,
    what_of,
    zip_list,
)
from b2nd_dask.frame.open.embedded import EmbeddedReader, EmbedStore
from b2nd_dask.storage import ByteReader, Location, is_zip, member_offset


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


#: For which keys to say what the member is, which may take a read.
_Wanted = Callable[[str], bool]


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
