"""Decide which paths a frame may be written to: in a store, only separate files.

python-blosc2 searches a member of a ``.b2d`` first among its files, ``KEY.b2nd`` for arrays, then
in the embed store. So a file with this name may be written. A file without the suffix would be a
second one for the key, and a file for a key of the embed store would hide a member.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.members.store import (
    ARRAY,
    EMBED,
    STORES,
    inside,
    is_folder,
    is_named_store,
    is_plain_folder,
    open_store,
    opened,
    require_no_link_out,
)
from b2nd_dask.storage import Location, printable, store_in


def target_of(
    urlpath: Any, storage_options: Mapping[str, Any] | None = None, *, contiguous: bool = True
) -> Location:
    """Find the location of a new frame; arguments as for `to_b2nd`.

    Raises `ValueError` if the name is that of a store, or python-blosc2 would not find the frame in
    its store, `UnsupportedFrameError` if the path leads out of a store by a link in it.
    """
    location = Location.of(urlpath, storage_options=storage_options)
    require_no_link_out(location)
    if isinstance(location.urlpath, bytes):
        return location
    named = _without_dots(location)
    if is_named_store(named):
        raise ValueError(
            f"{location.label}: {', '.join(STORES)} are suffixes of stores, not of frames: write "
            f"the frame to a file NAME{ARRAY}. To put it into a store, use store[KEY] = "
            f"blosc2.open(FILE) of python-blosc2, or write to STORE.b2d/KEY{ARRAY}"
        )
    if _require_own_file(named) and not contiguous:
        raise ValueError(
            f"{location.label}: members of a store are contiguous frames: omit contiguous=False"
        )
    return location


def frame_to_change(urlpath: Any, storage_options: Mapping[str, Any] | None = None) -> Location:
    """Find a frame for a change in place; arguments as for `to_b2nd`.

    Raises `ValueError` if it is a store, or a member of a store without its own file,
    `UnsupportedFrameError` if the path leads out of a store by a link in it.
    """
    location = Location.of(urlpath, storage_options=storage_options)
    require_no_link_out(location)
    if isinstance(location.urlpath, bytes):
        return location
    # a frame may have the name of a store
    is_there = not location.is_url and os.path.lexists(location.url)
    named = _without_dots(location)
    if is_there and is_named_store(named) and list_members(named) is not None:
        raise ValueError(
            f"{location.label}: this is a store of python-blosc2, not a frame: b2nd_dask can "
            f"change only the frames in separate files of a .b2d (pass STORE.b2d/KEY{ARRAY}); "
            "`b2nd-dask convert` writes a new store"
        )
    if not is_there:
        _require_own_file(named)
    return location


def local_frame(urlpath: Any, doing: str) -> Location:
    """Like `frame_to_change`, only for local frames; else ValueError names the operation."""
    location = frame_to_change(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(f"{location.label}: only frames in local files {doing}")
    return location


def _without_dots(location: Location) -> Location:
    """Resolve a path up to its last ``..``, which is the parent of a link's target."""
    parts = () if location.is_url else Path(location.url).parts
    if ".." not in parts:
        return location
    at = len(parts) - parts[::-1].index("..")
    # keep later links: a store is identified by the name that the user gives
    folder = os.path.realpath(Path(*parts[:at]))
    return replace(location, urlpath=str(Path(folder, *parts[at:])))


def _require_own_file(location: Location) -> bool:
    """Check that a path in a store is a separate file; return whether it is in a store."""
    found = store_in(location.url)
    if found is None:
        return False
    store, key = replace(location, urlpath=found[0]), found[1]
    if is_plain_folder(store):
        return False
    if not is_folder(store) and not store.url.endswith(".b2d"):
        raise ValueError(
            f"{location.label}: {key} is a member of the store {store.label}, and b2nd_dask cannot "
            "change members of .b2z and .b2e. Copy it to a separate file by "
            f"to_b2nd(from_b2nd(MEMBER), NAME{ARRAY}), change that file, and put it into the store "
            "by store[KEY] = blosc2.open(FILE) of python-blosc2"
        )
    member = f"/{key.removesuffix(ARRAY)}"
    own = inside(store, f"{member[1:]}{ARRAY}")
    with opened(own) as reader:
        if reader is None:
            _require_free(location, store, member)
    if own != location:
        raise ValueError(
            f"{location.label}: the file of the array {member} in the folder of a store has a "
            f"suffix: give {own.label}"
        )
    return True


def _require_free(location: Location, store: Location, member: str) -> None:
    """Check that a new file hides no member, and that its key is not that of a group."""
    embedded: Collection[str] = ()
    keys: Collection[str] = ()
    if is_folder(store):
        with open_store(store) as there:
            embedded = there.embed.entries if there.embed else ()
            # a listing of a URL may take long or be forbidden
            keys = embedded if store.is_url else there.keys()
    if member in embedded:
        raise ValueError(
            f"{location.label}: {member} is in the {EMBED} of the store, which b2nd_dask cannot "
            "change, and a file for the same key would hide it: change it with python-blosc2, or "
            "delete it with python-blosc2 before you write its file"
        )
    for key in keys:
        if key.startswith(f"{member}/"):
            raise ValueError(
                f"{location.label}: {member} is a group of the store, with {printable(key)}"
            )
        if member.startswith(f"{key}/"):
            raise ValueError(
                f"{location.label}: {printable(key)} is a member of the store, not a group"
            )
