"""Containers of frames: names of stores in paths, and the files of a ZIP archive.

A ``.b2z`` of python-blosc2 is a ZIP archive of frames that are stored, not deflated. Each frame is
contiguous and is read in place (docs/format.md, Stores). Nothing is extracted: names in an archive
are compared, never used as paths.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from fsspec.spec import AbstractBufferedFile

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError
from b2nd_dask.storage.byte_reader import HEAD_NBYTES, Span
from b2nd_dask.storage.read.location import looks_remote

if TYPE_CHECKING:
    from b2nd_dask.storage.byte_reader import ByteReader

#: Most bytes of the list of files at the end of an archive: 200,000 entries with short names.
MAX_DIRECTORY = 1 << 24

_STORE = re.compile(r"(?P<store>.*?\.b2[zde])/(?P<key>.+)", re.DOTALL)
_LOCAL = struct.Struct("<4s2xHH16xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
#: Compression methods whose decoder needs little memory beside its output.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: First bytes of an archive with files, and of one without.
_MAGICS = (_LOCAL_MAGIC, b"PK\x05\x06")


class ZipMember(NamedTuple):
    """A file of an archive, by its entry in the list at the end."""

    name: str
    header_offset: int
    nbytes: int
    """Bytes in the archive."""
    stop: int
    """Start of the next file, or of the list of files."""
    method: int
    """Compression method."""
    is_encrypted: bool
    crc: int
    """Checksum of the bytes of the file."""

    @property
    def is_plain(self) -> bool:
        """Whether the file is neither compressed nor encrypted."""
        return self.method == zipfile.ZIP_STORED and not self.is_encrypted


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
    # frames in a folder are files of their own
    is_file = store.partition("?")[0].endswith(".b2d") and key.endswith(".b2nd")
    is_local = not looks_remote(text)
    own = os.path.expanduser(text)  # noqa: PTH111 - Path's raises if the user does not exist
    if is_file or (is_local and os.path.lexists(own)):
        return urlpath, None
    return store, key


def store_in(urlpath: Any) -> tuple[str, str] | None:
    """Split a path or URL into a store and a key by names alone; None if it names no store."""
    if not isinstance(urlpath, str | os.PathLike):
        return None
    path, mark, query = os.fsdecode(urlpath), "", ""
    if looks_remote(path):
        path, mark, query = path.partition("?")
    else:
        path = path.replace(os.sep, "/")
    found = _STORE.fullmatch(path)
    key = found["key"].strip("/") if found else ""
    return (found["store"] + mark + query, key) if found and key else None


def is_zip(reader: ByteReader) -> bool:
    """Whether an object starts like a ZIP archive."""
    (head,) = reader.read([Span(0, 4)])
    return head in _MAGICS


def zip_members(reader: ByteReader) -> dict[str, ZipMember]:
    """List the files of an archive, by name.

    Raises `FrameFormatError` if the object is no archive or a damaged one, or two of its files
    overlap or share a name.
    """
    file = _RangeFile(reader)
    try:
        with zipfile.ZipFile(file) as archive:
            entries, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as e:
        raise _damaged(reader, str(e)) from e
    entries.sort(key=lambda entry: entry.header_offset)
    starts = [entry.header_offset for entry in entries]
    members: dict[str, ZipMember] = {}
    for entry, start, stop in zip(entries, starts, [*starts, end][1:], strict=True):
        name = entry.orig_filename
        if name in members:
            raise _damaged(reader, f"two files have the name {name!r}")
        if not 0 <= start <= start + _LOCAL.size + entry.compress_size <= stop <= end:
            raise _damaged(reader, f"{name!r} overlaps the next file or the list of files")
        encrypted = bool(entry.flag_bits & _ENCRYPTED)
        member = ZipMember(
            name, start, entry.compress_size, stop, entry.compress_type, encrypted, entry.CRC
        )
        if member.is_plain and entry.compress_size != entry.file_size:
            raise _damaged(reader, f"{name!r} is stored as it is, but has two different sizes")
        members[name] = member
    return members


def member_offset(reader: ByteReader, member: ZipMember) -> int:
    """Find the offset of a file's bytes in an archive.

    Raises `FrameFormatError` if the file's header contradicts the list of files,
    `UnsupportedFrameError` if the file is compressed or encrypted.
    """
    if not member.is_plain:
        raise UnsupportedFrameError(
            f"{member.name!r} is compressed or encrypted by ZIP; store frames in the archive as "
            "they are, as python-blosc2 writes a .b2z",
            path=reader.label,
        )
    return _offset(reader, member)


def _offset(reader: ByteReader, member: ZipMember) -> int:
    (head,) = reader.read([Span(member.header_offset, member.header_offset + _LOCAL.size)])
    if len(head) < _LOCAL.size or not head.startswith(_LOCAL_MAGIC):
        raise _damaged(reader, f"{member.name!r} does not start where the list of files says")
    _, flags, method, name_nbytes, extra_nbytes = _LOCAL.unpack(head)
    offset = member.header_offset + _LOCAL.size + int(name_nbytes) + int(extra_nbytes)
    same = bool(flags & _ENCRYPTED) == member.is_encrypted and method == member.method
    if not same or offset + member.nbytes > member.stop:
        raise _damaged(reader, f"the header of {member.name!r} contradicts the list of files")
    return offset


def read_text_file(reader: ByteReader, member: ZipMember, most: int) -> bytes:
    """Read a small file of an archive, which may be deflated.

    Raises `FrameFormatError` if the file has more bytes than `most`, or is damaged;
    `UnsupportedFrameError` if it is encrypted, or its decoder may need any amount of memory.
    """
    if member.is_encrypted or member.method not in _BOUNDED:
        raise UnsupportedFrameError(
            f"{member.name!r} is encrypted, or neither stored nor deflated", path=reader.label
        )
    offset = _offset(reader, member)
    # deflated data may be some bytes longer than the original
    (data,) = reader.read([Span(offset, offset + min(member.nbytes, most + (most >> 8) + 64))])
    data = bytes(data)
    if member.method == zipfile.ZIP_DEFLATED:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most + 1)
        except zlib.error as error:
            raise _damaged(reader, f"{member.name!r}: {error}") from error
    if len(data) > most:
        raise _damaged(reader, f"{member.name!r} has more than {most} bytes")
    if zlib.crc32(data) != member.crc:
        raise _damaged(reader, f"{member.name!r} does not match its checksum")
    return data


def _damaged(reader: ByteReader, problem: str) -> FrameFormatError:
    return FrameFormatError(f"a damaged ZIP archive: {problem}", path=reader.label)


class _RangeFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file object for `zipfile`: it reads the end of an object once, and bounds other reads."""

    def __init__(self, reader: ByteReader) -> None:
        super().__init__(None, reader.label, size=reader.opened_identity().size, cache_type="none")
        self._reader = reader
        # holds the end of the list of files, and mostly all of it
        self._tail_start = max(0, self.size - HEAD_NBYTES)
        (self._tail,) = reader.read([Span(self._tail_start, self.size)])

    def seek(self, loc: int, whence: int = io.SEEK_SET) -> int:
        try:
            return int(super().seek(loc, whence))
        except ValueError as error:
            # `zipfile` looks for the OSError of files, `zip_members` for ValueError
            raise io.UnsupportedOperation(str(error)) from error

    def _fetch_range(self, start: int, end: int) -> bytes:
        if end - start > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its list of files has {end - start} bytes")
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        (data,) = self._reader.read([Span(start, end)])
        return data
