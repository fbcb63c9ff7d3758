"""Stores of all kinds: their files, keys and embed store, and the frame of a member."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.metalayers import array_meta_of
from b2nd_dask.frame.open.embedded import EmbedStore, parsed_once
from b2nd_dask.frame.open.opening import read_header
from b2nd_dask.storage import (
    ByteReader,
    Location,
    Span,
    ZipMember,
    below,
    is_zip,
    matches_of,
    member_offset,
    printable,
    read_text_file,
    split_path,
    zip_members,
)

EMBED = "embed.b2e"
#: Suffixes of stores.
STORES = (".b2z", ".b2d", ".b2e")
ARRAY = ".b2nd"
#: Content of the other files of a store, by suffix.
OTHERS = {".b2f": "an SChunk", ".b2b": "a BatchArray"}
#: Most keys that an error lists.
_LISTED = 10


def path_of(location: Location) -> str:
    """Path, or URL up to the end of its path, without trailing slashes."""
    return split_path(location.url)[0].rstrip("/")


def is_named_store(location: Location) -> bool:
    """Whether the name of a location is that of a store."""
    return path_of(location).endswith(STORES)


def is_folder(location: Location) -> bool:
    """Whether a store is, or would become, a folder."""
    if location.is_url:
        return path_of(location).endswith(".b2d")
    return os.path.isdir(location.url)  # noqa: PTH112 - Path's raises where it may not look


def is_plain_folder(location: Location) -> bool:
    """Whether a location is a local folder but not a store, even if it has the suffix of one."""
    return not location.is_url and is_folder(location) and not Path(location.url, EMBED).exists()


def inside(location: Location, name: str) -> Location:
    """The location of a file in the folder of a store."""
    if location.is_web:
        # characters of a name that have a meaning in URLs
        name = re.sub("[%?#]|::", lambda mark: quote(mark[0]), name)
    return replace(location, urlpath=below(location.url, name))


def require_inside(location: Location, found: Location, name: str) -> None:
    """Check that a file of a store is not a link out of it; whoever packed it chose the links."""
    if location.is_url:
        return
    root, own = (os.path.realpath(path) for path in (location.url, found.url))
    if not Path(own).is_relative_to(root):
        raise UnsupportedFrameError(
            f"{name} is a link to a file outside of the store", path=location.label
        )


def require_no_link_out(location: Location) -> None:
    """Check that a path into the folder of a store does not leave it by a link.

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


def listed(location: Location, pattern: str) -> list[str]:
    """Names in the folder of a URL that match a pattern; none if the server lists no folders."""
    urls: list[str] | None = None
    with suppress(FileNotFoundError):
        urls = matches_of(below(location.url, pattern), location.storage_options)
    return [split_path(url)[0].removeprefix(f"{path_of(location)}/") for url in urls or ()]


def files(location: Location) -> list[str]:
    """List the files in a folder, and the sparse frames; empty for URLs that list no folders.

    Hidden files are omitted, since writes use hidden staging areas beside their targets.
    """
    root = path_of(location)
    if location.is_url:
        names = listed(location, "**/*.b2*")
    else:
        paths = (p for p in Path(root).rglob("*") if p.suffix == ARRAY or not p.is_dir())
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

    Whoever packed the store chose the key: ``/../x`` would lead out of a folder, and ``/x.b2nd``
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


class Store:
    """An open store; `open_store` creates it."""

    def __init__(self, location: Location, stack: ExitStack) -> None:
        self._location = location
        self._stack = stack
        self._reader: ByteReader | None = None
        self._archive: Mapping[str, ZipMember] = {}
        self.is_folder = is_folder(location)
        self.is_embed_store = False
        """Whether it is an embed store alone, or not a store."""
        if not self.is_folder:
            self._reader = stack.enter_context(closing(location.open()))
            self.is_embed_store = not is_zip(self._reader)
            if not self.is_embed_store:
                self._archive = parsed_once(location, self._reader, zip_members)

    def open(self, name: str) -> tuple[Location, ByteReader] | None:
        """Open a file of the store; None if it does not exist."""
        if self._reader is None:
            at = inside(self._location, name)
            require_inside(self._location, at, f"/{name}")
            reader = self._stack.enter_context(opened(at))
            return None if reader is None else (at, reader)
        if name not in self._archive:
            return None
        member = self._archive[name]
        offset = member_offset(self._reader, member)
        at = replace(self._location, offset=offset, nbytes=member.nbytes, member=key_of(name))
        # a new reader, since that of a URL requests and keeps the first bytes at its offset
        return at, self._stack.enter_context(closing(at.open()))

    @cached_property
    def embed(self) -> EmbedStore | None:
        """The embed store; raises as `EmbedStore`."""
        if self.is_embed_store and self._reader is not None:
            return EmbedStore(self._reader, self._location)
        found = self.open(EMBED)
        return found and EmbedStore(found[1], found[0])

    def files(self) -> Iterator[tuple[str, int | None, bool]]:
        """List the files except the embed store: name, bytes, whether it can be read in place."""
        if self.is_folder:
            for name in files(self._location):
                path = Path(self._location.url, name)
                yield name, None if self._location.is_url else path.lstat().st_size, True
        for name, member in self._archive.items():
            if name != EMBED and not name.endswith("/"):
                yield name, member.nbytes, member.is_plain

    def keys(self) -> list[str]:
        """List the keys of all members."""
        entries = self.embed.entries if self.embed else ()
        names = (name for name, _, _ in self.files() if name.endswith((ARRAY, *OTHERS)))
        return sorted({*entries, *map(key_of, names)})

    def read(self, name: str, most: int) -> bytes | None:
        """Read a small file of at most `most` bytes; None if it does not exist."""
        if self._reader is not None and name in self._archive:
            return read_text_file(self._reader, self._archive[name], most)
        found = self.open(name)
        if found is None:
            return None
        (data,) = found[1].read([Span(0, most + 1)])
        return data


@contextmanager
def open_store(location: Location) -> Iterator[Store]:
    """Open a store; its content is read on access.

    Raises `FrameFormatError` if the archive is damaged.
    """
    with locating(path=location.label), ExitStack() as stack:
        yield Store(location, stack)


@dataclass(frozen=True)
class StoredArray:
    """An array in a store, by its key."""

    store: Location
    key: str


def locate_member(location: Location, key: str) -> Location:
    """Find the frame of an array in the store at a location.

    The key is that of python-blosc2, with or without the leading slash and the suffix of its file.
    Raises `FileNotFoundError` if the store or the member does not exist, `UnsupportedFrameError` if
    the member is not an array, or cannot be read in place, `FrameFormatError` if the store is
    damaged, or it is not a store.
    """
    if not isinstance(key, str):
        raise TypeError(f"component= must be the key of a member, not a {type(key).__name__}")
    plain = plain_key(key)
    if isinstance(location.urlpath, bytes) or location.offset:
        raise ValueError(f"{location.label}: component= needs the path or URL of a store")
    with open_store(location) as store:
        # some characters of keys must be quoted in URLs
        unquoted = plain_key(unquote(plain)) if location.is_web else plain
        for name in dict.fromkeys([plain, unquoted]):
            if found := store.open(name + ARRAY):
                return found[0]
        if store.embed is None and store.is_folder:
            if location.is_url:
                raise FileNotFoundError(f"{location.label}: not a store: it has no {EMBED}")
            raise FrameFormatError(f"a folder without {EMBED} is not a store of python-blosc2")
        if store.embed and f"/{plain}" in store.embed.entries:
            return _embedded(store.embed, f"/{plain}")
        for suffix, what in OTHERS.items():
            if store.open(plain + suffix):
                raise _not_an_array(f"/{plain}", what)
        if unquoted != plain:
            return locate_member(location, unquoted)
        raise _missing_member(location, f"/{plain}", store.keys())


def _embedded(store: EmbedStore, key: str) -> Location:
    found = replace(store.location, member=key, embedded=True)
    what = what_of(store.frame_of(key, found.label))
    if not what.startswith("array"):
        raise _not_an_array(key, what)
    return found


def what_of(reader: ByteReader) -> str:
    """Describe the frame of a member."""
    try:
        _, header = read_header(reader, reader.opened_identity().size)
        if not {"b2nd", "caterva"} & header.metalayers.keys():
            others = ", ".join(sorted(header.metalayers))
            return f"an SChunk ({others})" if others else "an SChunk"
        meta = array_meta_of(header.metalayers)
    except UnsupportedFrameError as error:
        return error.problem
    shape = " x ".join(map(str, meta.shape)) or "of one element"
    return f"array {shape}, {meta.dtype or f'V{header.typesize}'}"


def _not_an_array(key: str, what: str) -> UnsupportedFrameError:
    return UnsupportedFrameError(
        f"{printable(key)} is {what}, not an array: open it with python-blosc2"
    )


def _missing_member(location: Location, key: str, keys: list[str]) -> Exception:
    """Build the error for a key without a member."""
    group = [name for name in keys if name.startswith(f"{key}/")]
    if group:
        return UnsupportedFrameError(
            f"{printable(key)} is a group; pass one of its members: {some_of(group)}"
        )
    return FileNotFoundError(
        f"{location.label}: no member {printable(key)} in this store, "
        f"which has {some_of(keys) or 'nothing'}"
    )
