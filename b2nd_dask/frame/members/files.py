"""Names of the files of stores, and keys of their members."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.storage import ByteReader, Location, matches_of, printable

EMBED = "embed.b2e"
#: Suffixes of stores.
STORES = (".b2z", ".b2d", ".b2e")
ARRAY = ".b2nd"
#: Content of the other files of a store, by suffix.
OTHERS = {".b2f": "an SChunk", ".b2b": "a BatchArray"}
#: Most keys that an error lists.
_LISTED = 10


def path_of(location: Location) -> str:
    """Path, or URL without its query, without trailing slashes."""
    path = location.url.partition("?")[0] if location.is_url else location.url
    return path.rstrip("/")


def is_named_store(location: Location) -> bool:
    """Whether the name of a location is that of a store."""
    return path_of(location).endswith(STORES)


def is_folder(location: Location) -> bool:
    """Whether a store is, or would become, a folder."""
    if location.is_url:
        return path_of(location).endswith(".b2d")
    return os.path.isdir(location.url)  # noqa: PTH112 - Path's raises where it may not look


def is_plain_folder(location: Location) -> bool:
    """Whether a location is a local folder that is not a store; its suffix may be that of one."""
    return not location.is_url and is_folder(location) and not Path(location.url, EMBED).exists()


def inside(location: Location, name: str) -> Location:
    """The location of a file in the folder of a store."""
    _, mark, query = location.url.partition("?") if location.is_url else ("", "", "")
    return replace(location, urlpath=f"{path_of(location)}/{name}{mark}{query}")


def require_inside(location: Location, found: Location, name: str) -> None:
    """Check that a file of a store is not a link out of it: the packer controls links."""
    if location.is_url:
        return
    root, own = (os.path.realpath(path) for path in (location.url, found.url))
    if not Path(own).is_relative_to(root):
        raise UnsupportedFrameError(
            f"{name} is a link to a file outside of the store", path=location.label
        )


def require_no_link_out(location: Location) -> None:
    """Check that a path into the folder of a store, given or matched, is not a link out of it.

    Raises `UnsupportedFrameError` if it leads to a file or folder outside the store.
    """
    if isinstance(location.urlpath, bytes) or location.is_url:
        return
    # `Path` keeps each "..", which is the parent of a link's target
    parts = Path(location.url).parts
    for end in range(1, len(parts)):
        store = Path(*parts[:end])
        if not store.name.endswith(STORES) or not (store / EMBED).exists():
            continue
        key = Path(os.path.normpath(Path(*parts[end:])))
        # a path with ".." leaves the store explicitly
        if key.parts[:1] != ("..",):
            require_inside(replace(location, urlpath=str(store)), location, f"/{key.as_posix()}")


@contextmanager
def opened(location: Location) -> Iterator[ByteReader | None]:
    """Open an object that may not exist; yield None if it does not."""
    try:
        reader = location.open()
        reader.opened_identity()
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    with closing(reader):
        yield reader


def files(location: Location) -> list[str]:
    """List the files of a store that is a folder; empty for URLs whose server lists no folders.

    Hidden files are omitted, since writes use hidden staging areas beside their targets.
    """
    root = path_of(location)
    if location.is_url:
        urls: list[str] | None = None
        with suppress(FileNotFoundError):
            urls = matches_of(f"{root}/**/*.b2*", location.storage_options)
        folder = root.rpartition("/")[2]
        names = [url.rpartition(f"{folder}/")[2] for url in urls or ()]
    else:
        paths = (Path(at, name) for at, _, inner in os.walk(root) for name in inner)
        names = [path.relative_to(root).as_posix() for path in paths]
    hidden = re.compile(r"(^|/)\.")
    return [name for name in names if name != EMBED and not hidden.search(name)]


def plain_key(key: str) -> str:
    """Strip the leading slash and the suffix from a key; ValueError if it leads elsewhere."""
    plain = key.strip("/").removesuffix(ARRAY)
    parts = plain.replace(os.sep, "/").split("/")
    if not plain or any(part in ("", ".", "..") for part in parts) or "\0" in plain:
        raise ValueError(f"component={key!r} is not a key: give one such as '/group/x'")
    return plain


def is_key(key: str) -> bool:
    """Whether a stored key can locate its member.

    The packer of the store chose the key: ``/../x`` would lead out of a folder, and ``/x.b2nd``
    would name the file of another member.
    """
    try:
        return key == f"/{plain_key(key)}"
    except ValueError:
        return False


def key_of(name: str) -> str:
    """Key of the member in a file."""
    return "/" + os.path.splitext(name)[0]  # noqa: PTH122 - a name in an archive is no path


def what_by_name(name: str) -> str:
    """Describe the content of a store's file by its name."""
    suffix = os.path.splitext(name)[1]  # noqa: PTH122
    return "array" if suffix == ARRAY else OTHERS.get(suffix, f"another file, {name}")


def some_of(names: Sequence[str]) -> str:
    """Format the first of some keys or names for an error."""
    more = ["..."] if len(names) > _LISTED else []
    return ", ".join([*map(printable, names[:_LISTED]), *more])
