"""The files of a store, and what each holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.array_meta import array_meta_of
from b2nd_dask.frame.open.embedded import StoreLists
from b2nd_dask.frame.open.opening import read_header
from b2nd_dask.storage import (
    ByteReader,
    Location,
    ZipMember,
    matches_of,
    printable,
    zip_members,
)

EMBED = "embed.b2e"
#: How the names of stores end.
STORES = (".b2z", ".b2d", ".b2e")
ARRAY = ".b2nd"
#: What the other files of a store hold, by how they end.
OTHERS = {".b2f": "an SChunk", ".b2b": "a BatchArray"}
#: Keys that an error lists, at most.
_LISTED = 10
#: Characters and parts of a key, at most; paths of file systems have no more, either.
MAX_KEY, MAX_PARTS = 4096, 256

_zip_lists: StoreLists[dict[str, ZipMember]] = StoreLists()


def is_folder(location: Location) -> bool:
    """Whether a store is, or would be, a folder."""
    if location.is_url:
        return location.url.partition("?")[0].rstrip("/").endswith(".b2d")
    return os.path.isdir(location.url)  # noqa: PTH112 - Path's raises where it may not look


def is_store(location: Location) -> bool:
    """Whether a folder is a store; of a URL that is left open."""
    return location.is_url or Path(location.url, EMBED).exists()


def is_plain_folder(location: Location) -> bool:
    """Whether this is a local folder that has the name of a store, and is none."""
    local = not location.is_url and os.path.isdir(location.url)  # noqa: PTH112 - as above
    return local and not is_store(location)


def inside(location: Location, name: str) -> Location:
    """A file in the folder of a store."""
    path, mark, query = location.url, "", ""
    if location.is_url:
        path, mark, query = path.partition("?")
    return replace(location, urlpath=f"{path.rstrip('/')}/{name}{mark}{query}")


def require_inside(location: Location, found: Location, name: str) -> None:
    """Check that a file of a store is no link out of it: who packed the store chose its target."""
    if location.is_url:
        return
    root, own = (os.path.realpath(path) for path in (location.url, found.url))
    if os.path.commonpath([root, own]) != root:
        raise UnsupportedFrameError(f"{name} is a link to a file outside of the store")


def require_no_link_out(location: Location) -> None:
    """Check that a path into the folder of a store is no link out of it, spelled out or matched.

    Raises
    ------
    UnsupportedFrameError
        It leads to a file or folder outside of the store.
    """
    if isinstance(location.urlpath, bytes) or location.is_url:
        return
    # `Path` keeps each "..", which leads to the parent of what a link points to
    parts = Path(location.url).parts
    for end in range(1, len(parts)):
        if not parts[end - 1].endswith(STORES):
            continue
        store = replace(location, urlpath=str(Path(*parts[:end])))
        key = Path(os.path.normpath(Path(*parts[end:])))
        # of its own accord the path leaves the store by ".."
        if key.parts[:1] == ("..",) or not is_store(store):
            continue
        try:
            require_inside(store, location, f"/{key.as_posix()}")
        except UnsupportedFrameError as error:
            raise error.located(path=store.label) from None


@contextmanager
def opened(location: Location) -> Iterator[ByteReader | None]:
    """Open an object that need not be there."""
    try:
        reader = location.open()
        reader.opened_identity()
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    with closing(reader):
        yield reader


def zip_list(location: Location, reader: ByteReader) -> dict[str, ZipMember]:
    """The files of an opened archive, by name; see `zip_members`."""
    return _zip_lists.get(location, reader, lambda: zip_members(reader))


def files(location: Location) -> Iterator[str]:
    """Names of the files of a store that is a folder, as far as the place lists folders.

    Hidden ones are left out: writes stage what they make in hidden areas beside their targets.
    """
    root = location.url
    if location.is_url:
        root = root.partition("?")[0].rstrip("/")
        with suppress(FileNotFoundError):
            for url in matches_of(f"{root}/**/*.b2*", location.storage_options) or ():
                name = url.rpartition(f"{root.rpartition('/')[2]}/")[2]
                if name != EMBED and not any(map(_is_hidden, name.split("/"))):
                    yield name
        return
    for folder, folders, names in os.walk(root):
        # `os.walk` enters those that are left
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in names:
            found = os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118
            if found != EMBED and not _is_hidden(name):
                yield found


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def plain_key(key: str) -> str:
    """A key without the slash in front and the suffix; ValueError where it leads elsewhere."""
    plain = key.strip("/").removesuffix(ARRAY)
    if not plain or any(part in ("", ".", "..") for part in plain.split("/")) or "\0" in plain:
        raise ValueError(f"component={key!r} is no key: give one such as '/group/x'")
    return plain


def is_too_long(key: str) -> bool:
    """Whether a key of a store is too long to be matched with patterns."""
    return len(key) > MAX_KEY or key.count("/") > MAX_PARTS


def is_key(key: str) -> bool:
    """Whether a key that a store has is one by which the member is found.

    Who packed the store chose it: ``/../x`` would lead out of a folder, and ``/x.b2nd`` would name
    the file of another member.
    """
    try:
        return key == f"/{plain_key(key)}"
    except ValueError:
        return False


def key_of(name: str) -> str:
    """Key of the member that a file holds."""
    return "/" + os.path.splitext(name)[0]  # noqa: PTH122 - a name in an archive is no path


def some_keys(keys: Sequence[str]) -> str:
    """The first of some keys, for an error."""
    return (
        ", ".join([*map(printable, keys[:_LISTED]), *["..."][: len(keys) > _LISTED]]) or "nothing"
    )


def what_by_name(name: str) -> str:
    """Say what a file of a store holds."""
    suffix = os.path.splitext(name)[1]  # noqa: PTH122
    return "array" if suffix == ARRAY else OTHERS.get(suffix, f"another file, {name}")


def what_of(reader: ByteReader) -> str:
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
