"""Locations of frames: paths, URLs and bytes, keys of stores, patterns such as ``data/*.b2nd``."""

from __future__ import annotations

import glob
import hashlib
import os
import pickle
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.registry import known_implementations, registry

from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.read.container import BytesReader, OffsetReader, bytes_label
from b2nd_dask.storage.read.local_reader import LocalReader
from b2nd_dask.storage.read.remote import RemoteReader
from b2nd_dask.storage.redaction import Secrets, printable
from b2nd_dask.storage.urls import public_url, scheme_of, split_path
from b2nd_dask.system import path_of_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from b2nd_dask.storage.byte_reader import ByteReader

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(::|://)")
#: A mistyped URL that may hold a password.
_MISTYPED = re.compile(
    r"\s*[A-Za-z][A-Za-z0-9+.-]*:/?.*@|\s+[A-Za-z][A-Za-z0-9+.-]*:/|\s*(https?|s3):/", re.DOTALL
)
_LOCAL_URL = re.compile(r"(file|local)://")

#: A store in a path, and the key of an array in it.
_STORE = re.compile(r"(?P<store>.*?\.b2[zde])/(?P<key>.+)", re.DOTALL)
_WILDCARDS = re.compile(r"[*?\[]")
_NUMBERS = re.compile(r"(\d+)")
#: Not those of a bare ``memory://``.
_SLASHES = re.compile(r"(?<![:/])/+$")


@dataclass(frozen=True)  # no slots: they leave no room for the cached key
class Location:
    """Path or URL of a frame, with storage options; `Location.of` creates it. It pickles."""

    urlpath: str | bytes = field(repr=False)
    """An absolute local path, a URL, or the frame itself."""

    offset: int = 0
    """Start of the frame inside the object."""

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    """Arguments of the file system; None for local files and bytes."""

    member: str = ""
    """Key of the frame, if the object is a store."""

    embedded: bool = False
    """Whether the frame lies in the elements of an embed store, which starts at the offset."""

    nbytes: int | None = None
    """Bytes of the frame or embed store at the offset; None if it ends with the object."""

    @classmethod
    def of(
        cls,
        urlpath: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        offset: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Location:
        """Make a location of a path, a URL or the bytes of a frame.

        A local path may start with ``~`` for the home directory; a path-like is always a local
        path. `offset` is the start of the frame inside the object; storage options are for URLs
        only. The location is valid in other processes, whatever their working directory.

        Raises TypeError if `urlpath` is no path, URL or bytes, or the storage options are no
        mapping. Raises ValueError if the offset is negative, storage options come with a local path
        or bytes, or a text looks like a mistyped URL, which may hold a password.
        """
        normalized = _normalized(urlpath)
        if not isinstance(offset, int):
            raise TypeError(f"offset must be a number of bytes, not {type(offset).__name__}")
        if offset < 0:
            raise ValueError(f"offset is {offset}; it must not be negative")
        if not hasattr(storage_options or {}, "keys"):
            kind = type(storage_options).__name__
            raise TypeError(f'storage_options must be a mapping like {{"anon": True}}, not {kind}')
        options = dict(storage_options or {}) or None
        location = cls(normalized, offset, options)
        if options is not None and not location.is_url:
            raise ValueError(
                f"storage_options are for remote stores; {location.label} is local and takes none"
            )
        return location

    def __repr__(self) -> str:
        return f"Location({self.label!r})"

    @property
    def label(self) -> str:
        """Path or URL for messages, without secrets."""
        if self.member:
            return f"{self.object_label}/{printable(self.member.lstrip('/'))}"
        return f"{self.object_label}[{self.offset}:]" if self.offset else self.object_label

    @property
    def object_label(self) -> str:
        """Label of the whole object, or of a directory: without the final slash of a URL."""
        if isinstance(self.urlpath, bytes):
            return bytes_label(self.urlpath)
        return _SLASHES.sub("", public_url(self.urlpath)) if self.is_url else self.urlpath

    @cached_property
    def fingerprint(self) -> str:
        """Digest of path, offset and embedded key; unlike the label, it differs for each URL."""
        path = self.urlpath if isinstance(self.urlpath, bytes) else os.fsencode(self.urlpath)
        # must not change for frames that are not embedded: names of arrays depend on it
        inside = self.member.encode() + b"\0" if self.embedded else b""
        return hashlib.blake2b(inside + b"%d " % self.offset + path, digest_size=16).hexdigest()

    @cached_property
    def key(self) -> str:
        """Digest of all fields, for caches inside one process.

        If values of storage options pickle differently each time, keys of equal locations differ: a
        cache misses, but never returns a wrong object.
        """
        options = sorted((self.storage_options or {}).items())
        fields = (self.urlpath, self.offset, self.nbytes, options, self.member, self.embedded)
        return hashlib.blake2b(pickle.dumps(fields), digest_size=16).hexdigest()

    def open(self) -> ByteReader:
        """Open a reader; the caller closes it.

        Raises FileNotFoundError if a local file does not exist. The reader of a URL sends its first
        request at first use.
        """
        reader: ByteReader
        if isinstance(self.urlpath, bytes):
            reader = BytesReader(self.urlpath)
        elif self.is_url:
            reader = RemoteReader(self)
        else:
            reader = LocalReader(self.urlpath)
        if not self.offset:
            return reader
        return OffsetReader(reader, self.offset, self.nbytes, self.label)

    @property
    def url(self) -> str:
        """The URL, with its secrets; TypeError if the location is bytes."""
        if isinstance(self.urlpath, bytes):
            raise TypeError(f"{self.label} has no URL")
        return self.urlpath

    @property
    def secrets(self) -> Secrets:
        """Texts of the URL and the storage options that errors must not show."""
        return Secrets(self.url, self.storage_options)

    @property
    def is_url(self) -> bool:
        """Whether fsspec reads the location, not a reader of local files or bytes."""
        return isinstance(self.urlpath, str) and looks_remote(self.urlpath)

    @property
    def is_web(self) -> bool:
        """Whether a web server has the object; web servers do not list folders reliably."""
        return self.is_url and scheme_of(self.url) in ("http", "https")


def looks_remote(urlpath: str) -> bool:
    """Whether a text is a URL or a chain of URLs; the file name ``a::b.b2nd`` is none."""
    found = _URL.match(urlpath)
    if found is None or found[2] == "://":
        return found is not None
    return found[1] in known_implementations or found[1] in registry


def split_store(urlpath: Any) -> tuple[Any, str | None]:
    """Split a path or URL into that of a store and the key of an array in it, if it has both.

    Examples
    --------
    >>> split_store("s3://bucket/runs.b2z/group/x")
    ('s3://bucket/runs.b2z', 'group/x')
    >>> split_store("https://example.org/runs.b2e/x?token=1")
    ('https://example.org/runs.b2e?token=1', 'x')
    >>> split_store("s3://bucket/runs.b2d/group/x.b2nd")
    ('s3://bucket/runs.b2d/group/x.b2nd', None)
    """
    found = store_in(urlpath)
    if found is None:
        return urlpath, None
    store, key = found
    text = os.fsdecode(urlpath)
    # frames in a folder are files of their own, and small arrays share one
    is_file = split_path(store)[0].endswith(".b2d") and key.endswith((".b2nd", "embed.b2e"))
    is_local = not looks_remote(text)
    own = os.path.expanduser(text)  # noqa: PTH111 - Path's raises if the user does not exist
    if is_file or (is_local and os.path.lexists(own)):
        return urlpath, None
    return store, key


def store_in(urlpath: Any) -> tuple[str, str] | None:
    """Split a path or URL into a store and a key by names alone; None if it names no store."""
    if not isinstance(urlpath, str | os.PathLike):
        return None
    path, rest = split_path(os.fsdecode(urlpath))
    if not looks_remote(path):
        path = path.replace(os.sep, "/")
    found = _STORE.fullmatch(path)
    key = found["key"].strip("/") if found else ""
    return (found["store"] + rest, key) if found and key else None


def _normalized(urlpath: object) -> str | bytes:
    if isinstance(urlpath, bytes | bytearray | memoryview):
        return bytes(urlpath)
    if isinstance(urlpath, os.PathLike):
        return _absolute(os.fsdecode(urlpath))
    if not isinstance(urlpath, str):
        raise TypeError(
            "urlpath must be a path (str or path-like), a URL, or the bytes of a frame; "
            f"this is a {type(urlpath).__name__}"
        )
    if not urlpath:
        raise ValueError("urlpath is empty")
    local_url = _LOCAL_URL.match(urlpath)
    if local_url is None and looks_remote(urlpath):
        return urlpath
    has_drive = os.path.splitdrive(urlpath)[0]
    if not (local_url or has_drive) and _MISTYPED.match(urlpath):
        raise ValueError(
            "urlpath looks like a mistyped URL. It is not shown, since it may hold a password. "
            "A URL starts with scheme://, without a space; pass a file of such a name as "
            "pathlib.Path"
        )
    path = path_of_url(urlpath[local_url.end() :]) if local_url else urlpath
    return _absolute(path)


def _absolute(path: str) -> str:
    """Make a path absolute, and expand ``~`` and ``~user`` if the user exists.

    The separator is ``/``, also on Windows.
    """
    return Path(os.path.expanduser(path)).absolute().as_posix()  # noqa: PTH111 - Path's raises there


def matches_of(
    urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str] | None:
    """Expand a pattern to paths or URLs in natural order: ``x2`` comes before ``x10``.

    A path is a pattern if it has ``*``, ``?`` or ``[`` and no file has this very name. A URL is a
    pattern if it has ``*``: the other marks belong to names, a query or an address. None if
    `urlpath` is no pattern; raises FileNotFoundError if nothing matches.
    """
    if not _WILDCARDS.search(os.fsdecode(urlpath)):
        return None
    location = Location.of(urlpath, storage_options=storage_options)
    if not location.is_url:
        path = location.url
        # such names are rare, but legal
        if os.path.lexists(path) or not _WILDCARDS.search(path):
            return None
        # leading folders that exist may have marks in their names
        folder = next(each.as_posix() for each in Path(path).parents if os.path.lexists(each))
        pattern = glob.escape(folder) + path.removeprefix(folder)
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - pathlib's drops trailing parts
    elif "*" in location.url:
        found = _matches_of_url(location)
    else:
        return None
    if not found:
        raise FileNotFoundError(f"{location.label}: nothing matches this pattern")
    return sorted(found, key=natural_key)


def natural_key(name: str) -> list[tuple[int, str, str]]:
    """Sort key that orders numbers in names by value.

    Examples
    --------
    >>> sorted(["x10", "x2", "x2b", "a"], key=natural_key)
    ['a', 'x2', 'x2b', 'x10']
    """
    found = []
    for part in _NUMBERS.split(name):
        # digit by digit: `int` limits the length; digits of other scripts count, too
        digits = "".join(str(int(each)) for each in part if part.isdecimal()).lstrip("0")
        # the text orders 1 and 01
        found.append((len(digits) if part.isdecimal() else -1, digits, part))
    return found


def _matches_of_url(location: Location) -> list[str]:
    """Expand the first link of a chained URL that has a pattern; the others stay."""
    links = location.url.split("::")
    at = next(i for i, link in enumerate(links) if "*" in link)
    rest = "::".join(links[at:])
    connection = Connection.of(Location.of(rest, storage_options=location.storage_options))
    connection = replace(connection, label=location.label)
    # the file system strips scheme and host of a URL: restore them in the results
    pattern = connection.path.lstrip("/")
    prefix, mark, _ = links[at].rpartition(pattern)
    if not mark:
        raise ValueError(
            f"{location.label}: the pattern cannot be expanded; pass a list of the URLs"
        )
    # ? and [ are characters of names here, but wildcards for file systems except web servers
    escaped = connection.path if location.is_web else re.sub(r"[?\[]", r"[\g<0>]", connection.path)
    found = connection.call(lambda: connection.fs.glob(escaped))
    links_found = (prefix + name.lstrip("/") for name in found)
    return ["::".join([*links[:at], link, *links[at + 1 :]]) for link in links_found]
