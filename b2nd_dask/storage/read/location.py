"""Where a frame is, and how to reach it."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from b2nd_dask.storage.read.local_reader import LocalReader
from b2nd_dask.storage.read.memory import BytesReader, OffsetReader, bytes_label, window_label
from b2nd_dask.storage.read.remote import RemoteReader
from b2nd_dask.storage.redaction import Secrets, printable, public_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from b2nd_dask.storage.byte_reader import ByteReader

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
#: A URL that was mistyped, and that may hold a password.
_MISTYPED = re.compile(
    r"\s*[A-Za-z][A-Za-z0-9+.-]*:/?.*@|\s+[A-Za-z][A-Za-z0-9+.-]*:/|\s*(https?|s3):/", re.DOTALL
)
_LOCAL_URL = re.compile(r"(file|local)://")


@dataclass(frozen=True)  # no slots: they leave no room for the cached key
class Location:
    """Path or URL of a frame, and how to reach it. Pickles; made by `Location.of`."""

    urlpath: str | bytes = field(repr=False)
    """An absolute local path, a URL, or the frame itself."""

    offset: int = 0
    """Where the frame begins inside the object."""

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    """Arguments of the file system; None for local files and bytes."""

    member: str = ""
    """Key of the frame, where the object is a store."""

    embedded: bool = False
    """Whether the frame is not in the object as it is, but among the elements of an embed store
    that begins at the offset."""

    @classmethod
    def of(
        cls,
        urlpath: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        offset: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Location:
        """Make a location of a path, a URL or bytes.

        Parameters
        ----------
        urlpath : str, path-like, or bytes
            A local path (a path-like always is one), where ``~`` at the begin is the home; a URL
            that fsspec understands; or the bytes of a frame.
        offset : int
            Where the frame begins inside the object.
        storage_options : mapping, optional
            Arguments of the file system, for URLs only.

        Returns
        -------
        Location
            Valid in other processes, whatever their working directory.

        Raises
        ------
        TypeError
            For anything else than a path, a URL or bytes, and for storage options that are no
            mapping.
        ValueError
            For a negative offset, for storage options where there is no file system, and for a
            text that is no URL but looks like one with a password.
        """
        normalized = _normalized(urlpath)
        if not isinstance(offset, int):
            raise TypeError(f"offset is a number of bytes, not {type(offset).__name__}")
        if offset < 0:
            raise ValueError(f"offset is {offset}; it must not be negative")
        if not hasattr(storage_options or {}, "keys"):
            kind = type(storage_options).__name__
            raise TypeError(f'storage_options is a mapping, such as {{"anon": True}}, not {kind}')
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
        if isinstance(self.urlpath, bytes):
            label = bytes_label(self.urlpath)
        else:
            label = public_url(self.urlpath) if self.is_url else self.urlpath
        if self.member:
            return f"{label}/{printable(self.member.lstrip('/'))}"
        return window_label(label, self.offset) if self.offset else label

    @cached_property
    def fingerprint(self) -> str:
        """Digest of path and place inside, which differs for URLs that have one label."""
        path = self.urlpath if isinstance(self.urlpath, bytes) else self.urlpath.encode()
        # of a frame that fills its object as it always was: names of arrays depend on it
        inside = self.member.encode() + b"\0" if self.embedded else b""
        return hashlib.blake2b(inside + b"%d " % self.offset + path, digest_size=16).hexdigest()

    @cached_property
    def key(self) -> str:
        """Digest of all fields, for caches inside one process.

        Storage options whose values are objects that pickle differently from one time to the next
        make different keys, which costs a cache its hit but never makes a wrong one.
        """
        options = sorted((self.storage_options or {}).items())
        fields = (self.urlpath, self.offset, options, self.member, self.embedded)
        return hashlib.blake2b(pickle.dumps(fields), digest_size=16).hexdigest()

    def open(self) -> ByteReader:
        """Open a reader; its `close` is for the caller to call.

        Raises
        ------
        FileNotFoundError
            When a local file does not exist. A reader of a URL sends its first request when it is
            used.
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
        return OffsetReader(reader, self.offset, self.label if self.member else None)

    @property
    def url(self) -> str:
        """The URL, with its secrets.

        Raises
        ------
        TypeError
            For bytes.
        """
        if isinstance(self.urlpath, bytes):
            raise TypeError(f"{self.label} has no URL")
        return self.urlpath

    @property
    def secrets(self) -> Secrets:
        """What of the URL and the storage options errors must not show."""
        return Secrets(self.url, self.storage_options)

    @property
    def is_url(self) -> bool:
        """Whether fsspec reaches it, rather than this package's own readers."""
        return isinstance(self.urlpath, str) and _URL.match(self.urlpath) is not None


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
    if local_url is None and _URL.match(urlpath):
        return urlpath
    if local_url is None and _MISTYPED.match(urlpath):
        raise ValueError(
            "urlpath looks like a mistyped URL, which is not shown for it may hold a password: "
            "a URL begins with scheme://, without a space; pass a file of such a name as "
            "pathlib.Path"
        )
    path = unquote(urlpath[local_url.end() :]) if local_url else urlpath
    return _absolute(path)


def _absolute(path: str) -> str:
    """Absolute path, with ~ as the home; ``~x`` stays where no user is called x."""
    return str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 - Path's raises there
