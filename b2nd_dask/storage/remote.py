"""Objects behind any URL that fsspec understands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from b2nd_dask.errors import FrameFormatError, StaleFrameError
from b2nd_dask.storage.base import MAIN_MEMBER, Identity, Span, copy_into, read_merged
from b2nd_dask.storage.connection import Connection, connect, public_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_GAP = 64 * 1024
"""Bytes to read over. A request to a server on the same machine takes 0.5 to 1.5 ms (measured), in
which a connection of 100 MB/s moves about this much; farther servers only shift it upwards."""

MAX_SIZE = 16 * 1024 * 1024
"""Requests of this size already run at the full speed of a connection; merging further would only
take away concurrency. It is also the most that is fetched whole where a server ignores ranges."""

REMEMBERED_SIZES = 4096
"""Members whose size is kept, so that reading one costs one request instead of two."""

_TOKENS = (
    ("etag", "e_tag"),
    ("versionid", "generation", "version_id", "version"),
    ("content_md5", "content-md5", "md5hash", "digest", "checksum", "crc", "sha"),
    ("last-modified", "last_modified", "lastmodified", "mtime", "modified", "modify", "created"),
)
_Result = TypeVar("_Result")


class RemoteReader:
    """Read byte ranges of an object, or of the members of a directory, through fsspec.

    The first call that needs it asks what the URL names; none is made before.

    Parameters
    ----------
    url : str
        May be chained, such as ``simplecache::s3://bucket/a.b2nd`` or ``zip://a.b2nd::b.zip``.
    storage_options : mapping, optional
        Arguments of the file system. They appear in no message.
    """

    identity_is_cheap = False
    batch_nbytes = 64 << 20

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.label = public_url(url)
        self._url = url
        self._options = dict(storage_options or {})
        self._connection: Connection | None = None
        self._is_directory: bool | None = None
        self._ranges_ignored = False
        self._sizes: dict[str, int] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"RemoteReader({self.label!r})"

    @property
    def is_directory(self) -> bool:
        """Whether this is a sparse frame. May need a request, but none after `identity`."""
        if self._is_directory is None:
            self.identity()
        return bool(self._is_directory)

    def identity(self) -> Identity:
        """Size, and etag or whatever else the store has that changes with the object."""
        connection = self._connected()
        if connection.fs.cachable:
            # All of it: some file systems keep the details of a file in the listing of its parent,
            # which invalidate_cache(path) leaves as it is.
            self._ask(connection, connection.fs.invalidate_cache)
        else:
            # An archive: what is open shows the state of the archive when it was opened.
            connection = self._connected(anew=True)
        info = self._main_info(connection)
        size = self._size_in(info)
        self._sizes[""] = size
        self._ranges_ignored |= info.get("partial") is False
        return Identity(size, _token(info))

    def opened_identity(self) -> Identity:
        """As `identity`: nothing of a remote object is held open."""
        return self.identity()

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges in one round of concurrent requests; see `ByteReader.read`."""
        size = self._known_size(member)
        connection = self._connected()
        path = self._path(connection, member)
        whole = self._ranges_ignored
        return read_merged(
            spans,
            lambda merged: self._fetch(connection, path, merged, size),
            size=size,
            max_gap=size if whole else MAX_GAP,
            max_size=size if whole else MAX_SIZE,
        )

    def read_into(
        self, spans: Sequence[Span], targets: Sequence[memoryview], member: str = ""
    ) -> list[int]:
        """Read byte ranges to where they are wanted; see `ByteReader.read_into`."""
        return copy_into(self.read(spans, member), targets)

    def member_size(self, member: str) -> int:
        """Bytes in a member, asked anew; see `ByteReader.member_size`."""
        if not member:
            return self.identity().size
        connection = self._connected()
        path = self._path(connection, member)
        size = self._size_in(self._info(connection, path, member))
        if len(self._sizes) >= REMEMBERED_SIZES:
            self._sizes = {"": self._sizes[""]}
        self._sizes[member] = size
        return size

    def close(self) -> None:
        """Let go of the file system, which fsspec may keep for others."""
        self._closed = True
        self._connection = None

    def _known_size(self, member: str) -> int:
        # Some servers answer a range past the end with an error, and one that ignores ranges
        # can only be told by a result of the wrong length: no range is asked for that goes past
        # the end.
        size = self._sizes.get(member)
        return self.member_size(member) if size is None else size

    def _path(self, connection: Connection, member: str) -> str:
        if self.is_directory:
            return connection.member(member or MAIN_MEMBER)
        if member:
            raise ValueError(f"{self.label} is one object; it has no member {member!r}")
        return connection.path

    def _connected(self, *, anew: bool = False) -> Connection:
        if self._closed:
            raise ValueError(f"{self.label}: the reader is closed")
        connection = self._connection
        # File systems with an event loop do not survive a fork.
        if anew or connection is None or connection.pid != os.getpid():
            connection = connect(self._url, self._options)
            self._connection = connection
        return connection

    def _main_info(self, connection: Connection) -> dict[str, Any]:
        """Details of the object, or of the main member when the URL names a directory."""
        exists_as_directory = False
        if not self._is_directory and not self._url.endswith("/"):
            try:
                info = self._info(connection, connection.path)
            except FileNotFoundError:
                if self._is_directory is False:
                    raise
            else:
                # Web servers send who asks for a directory to the same URL with a slash.
                redirected = str(info.get("url", "")).partition("?")[0].endswith("/")
                exists_as_directory = info.get("type") == "directory" or redirected
                if not exists_as_directory:
                    self._is_directory = False
                    return info
        try:
            info = self._info(connection, connection.member(MAIN_MEMBER))
        except FileNotFoundError:
            if not exists_as_directory:
                raise
        else:
            self._is_directory = True
            return info
        raise FrameFormatError(
            f"a directory without a file {MAIN_MEMBER} is not a sparse frame", path=self.label
        )

    def _info(self, connection: Connection, path: str, member: str = "") -> dict[str, Any]:
        info: dict[str, Any] = self._ask(connection, lambda: connection.fs.info(path), member)
        return info

    def _size_in(self, info: Mapping[str, Any]) -> int:
        size = info.get("size")
        if not isinstance(size, int):
            raise OSError(
                f"{self.label}: the server does not tell the size of the object; "
                "copy it to a local file, or open it through simplecache::"
            )
        return size

    def _fetch(
        self, connection: Connection, path: str, spans: tuple[Span, ...], size: int
    ) -> list[bytes]:
        if self._ranges_ignored:
            self._refuse_whole(size)
        starts = [span.start for span in spans]
        stops = [span.stop for span in spans]
        parts = self._ask(
            connection,
            lambda: connection.fs.cat_ranges([path] * len(spans), starts, stops, on_error="raise"),
        )
        return [self._exact(part, span, size) for part, span in zip(parts, spans, strict=True)]

    def _exact(self, part: bytes, span: Span, size: int) -> bytes:
        asked = span.stop - span.start
        if len(part) == asked:
            return part
        if len(part) == size:
            self._ranges_ignored = True
            self._refuse_whole(size)
            return part[span.start : span.stop]
        raise StaleFrameError(
            f"{len(part)} bytes came for a range of {asked} of an object of {size} bytes: "
            "it changed while it was open; open it again",
            path=self.label,
            offset=span.start,
        )

    def _refuse_whole(self, size: int) -> None:
        if size > MAX_SIZE:
            raise OSError(
                f"{self.label}: the server ignores byte ranges, so that each read transfers all "
                f"{size} bytes; copy the object to a local file, or open it through simplecache::"
            )

    def _ask(
        self, connection: Connection, call: Callable[[], _Result], member: str = ""
    ) -> _Result:
        """Call the file system, with errors that name the object and hold no secrets."""
        label = f"{self.label}/{member}" if member else self.label
        return connection.ask(call, label)


def _token(info: Mapping[str, Any]) -> str:
    """Take the strongest detail that changes with the object."""
    details = {key.lower(): value for key, value in info.items()}
    for keys in _TOKENS:
        found = [str(details[key]) for key in keys if details.get(key)]
        if found:
            return "-".join(found)
    return ""
