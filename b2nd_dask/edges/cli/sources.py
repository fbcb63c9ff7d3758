"""Sources on the command line: a frame, or a store or directory of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from b2nd_dask.edges.datasets.places import manifest_of, place_of
from b2nd_dask.errors import B2ndError
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.info import dims_of
from b2nd_dask.frame.members.listing import Member, list_members
from b2nd_dask.frame.members.store import EMBED, is_named_store
from b2nd_dask.storage import MAIN_MEMBER, Location, printable, split_store

#: Files of python-blosc2 that hold several arrays.
_STORES = (".b2z", ".b2e")
#: A frame, or the members of a store or of a directory of frames.
Source = Frame | list[Member]


def opened(path: str, options: dict[str, Any]) -> Source:
    """Open the frame at a path, or list the members of the store or directory there."""
    try:
        # without verification: `info` also shows damaged frames
        return open_b2nd(path, verify=False, storage_options=options)
    except (B2ndError, OSError):
        is_member = split_store(path)[1] is not None
        location = Location.of(path, storage_options=options)
        members = None if is_member else list_members(location)
        if members is None and not location.is_url:
            files = files_in(path, (".b2nd", ".b2z"))
            names = (Path(each).relative_to(path).as_posix() for each in files)
            members = [
                Member(name, "store" if name.endswith(".b2z") else "array", None) for name in names
            ]
        if not members and not is_named_store(location):
            raise
        return [_with_shape(each, path, location) for each in members or []]


def attributes_at(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Attributes of the dataset in a store or directory."""
    place = place_of(Location.of(path, storage_options=options))
    return {} if place is None else dict(manifest_of(place).attrs)


def _with_shape(member: Member, path: str, location: Location) -> Member:
    """Describe a local member by its header; the header of a remote one would cost a request."""
    if member.what != "array" or location.is_url:
        return member
    try:
        frame = open_b2nd(_names([member], path)[0], verify=False)
    except (B2ndError, OSError) as error:
        return replace(member, what=f"damaged: {error}")
    nbytes = frame.cbytes if member.nbytes is None else member.nbytes
    return replace(member, what=_described(frame), nbytes=nbytes)


def _described(frame: Frame) -> str:
    """Lengths with the names of dims, if any, and dtype."""
    names = dims_of(reference_of(frame)) or ("",) * frame.ndim
    pairs = zip(names, frame.shape, strict=True)
    shape = " x ".join(f"{name} {n}".strip() for name, n in pairs) or "0-d"
    return f"array {shape}, {frame.dtype}"


def frames_at(path: str, options: dict[str, Any]) -> list[str]:
    """Paths of the frames at a path: itself, or all in the store, dataset or directory."""
    files = files_in(path, (".b2nd", *_STORES))
    found = [each for each in files if not each.endswith(_STORES)]
    stores = (each for each in files if each.endswith(_STORES))
    found += [frame for store in stores for frame in _frames_of(store, options)]
    return found or _frames_of(path, options) or [path]


def _frames_of(path: str, options: dict[str, Any]) -> list[str]:
    try:
        source = opened(path, options)
    except Exception:  # noqa: BLE001 - the caller opens the path again and raises the error
        return [path]
    # paths of arrays in `embed.b2e` start with the directory, not with this file
    store = str(Path(path).parent) if Path(path).name == EMBED else path
    return [path] if isinstance(source, Frame) else _names(source, store)


def files_in(path: str, suffixes: tuple[str, ...] = (".b2nd",)) -> list[str]:
    """Files in a directory and its subdirectories; by default frames."""
    folder = Path(path)
    if not path or "://" in path or not folder.is_dir() or (folder / MAIN_MEMBER).exists():
        return []
    found = (file for file in folder.rglob("*") if file.suffix in suffixes)
    return sorted(str(file) for file in found if "/." not in f"/{file.relative_to(folder)}")


def _names(members: list[Member], path: str) -> list[str]:
    arrays = (member.key for member in members if member.what.startswith("array"))
    return [f"{path.rstrip('/')}/{key.lstrip('/')}" for key in arrays]


def label_of(path: str) -> str:
    """Path, or URL without secrets, escaped for a terminal."""
    return printable(Location.of(path).label)
