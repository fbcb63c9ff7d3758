"""Frames in memory, at an offset inside another object, and in a ZIP archive.

A ``.b2z`` of python-blosc2 is a ZIP archive of frames that are stored, not deflated. Each frame in
an archive is contiguous and is read in place (docs/format.md, Stores). Nothing is extracted: names
in an archive are compared, never used as paths.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import xxhash
from fsspec.spec import AbstractBufferedFile

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError
from b2nd_dask.storage.byte_reader import HEAD_NBYTES, ByteReader, Identity, Item, Span, clip

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

#: Most bytes of the list of files at the end of an archive: 200,000 entries with short names.
MAX_DIRECTORY = 1 << 24

_LOCAL = struct.Struct("<4s2xHH16xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
#: Compression methods whose decoder needs little memory beside its output.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: First bytes of an archive with files, and of one without.
_MAGICS = (_LOCAL_MAGIC, b"PK\x05\x06")


class BytesReader(ByteReader):
    """Read byte ranges of bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self.label = bytes_label(data)
        self._data: bytes | None = data
        self._identity: Identity | None = None

    def identity(self) -> Identity:
        """Size and digest of the bytes."""
        # bytes cannot change; a digest of a large object costs as much as reading it
        if self._identity is None:
            data = self._open()
            self._identity = Identity(len(data), xxhash.xxh3_128_hexdigest(data))
        return self._identity

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges; see `ByteReader.read`."""
        data = self._open(member)
        return [data[start:stop] for start, stop in (clip(span, len(data)) for span in spans)]

    def close(self) -> None:
        """Release the bytes."""
        self._data = None

    def _open(self, member: str = "") -> bytes:
        self.require_no_member(member)
        if self._data is None:
            raise ValueError(f"{self.label}: the reader is closed")
        return self._data


class OffsetReader(ByteReader):
    """Read a frame that starts at an offset inside the object of another reader.

    `close` also closes that reader. Without `nbytes` the frame ends with the object.
    """

    def __init__(self, reader: ByteReader, offset: int, nbytes: int | None, label: str) -> None:
        self.label = label
        self.identity_is_cheap = reader.identity_is_cheap
        self.batch_nbytes = reader.batch_nbytes
        self.fills_buffers = reader.fills_buffers
        self.max_gap = reader.max_gap
        self._reader = reader
        self._offset = offset
        self._nbytes = nbytes

    def identity(self) -> Identity:
        """Identity of the outer object, with the size of the frame."""
        return self._inside(self._reader.identity())

    def opened_identity(self) -> Identity:
        """Like `identity`, for the open object."""
        return self._inside(self._reader.opened_identity())

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges, counted from the offset; see `ByteReader.read`."""
        self._check(member)
        return self._reader.read(list(map(self._outer, spans)))

    def read_each(
        self, items: Sequence[tuple[str, Span]], buffers: Sequence[memoryview]
    ) -> Generator[tuple[memoryview, int]]:
        """Read byte ranges, counted from the offset; see `ByteReader.read_each`."""
        size = self.opened_identity().size
        outer = [(member, self._outer(span)) for member, span in items]
        # a buffer is as long as its span, which the end of the frame may have cut
        buffers = [each[: b - a] for each, (_, (a, b)) in zip(buffers, outer, strict=True)]
        for data, _ in self._reader.read_each(outer, buffers):
            yield data, size

    def item(self, member: str, span: Span) -> Item | None:
        """See `ByteReader.item`."""
        return self._reader.item(member, self._outer(span))

    def close(self) -> None:
        """Close the reader of the outer object."""
        self._reader.close()

    def _outer(self, span: Span) -> Span:
        # `clip` also rejects a negative start, which would be positive after adding the offset
        start, stop = clip(span, sys.maxsize if self._nbytes is None else self._nbytes)
        return Span(start + self._offset, stop + self._offset)

    def _check(self, member: str) -> None:
        self.require_no_member(member)
        # not in __init__, since this is a request for a remote reader
        if self._reader.is_directory:
            raise FrameFormatError(
                "a directory has no byte offset; give offset=0 to open it as a sparse frame",
                path=self._reader.label,
            )

    def _inside(self, outer: Identity) -> Identity:
        self._check("")
        if self._offset > outer.size:
            raise FrameFormatError(
                f"offset={self._offset} lies past the end of the object, which has {outer.size} "
                "bytes",
                path=self._reader.label,
            )
        rest = outer.size - self._offset
        return replace(outer, size=rest if self._nbytes is None else self._nbytes)


def bytes_label(data: bytes) -> str:
    """Label of bytes for messages."""
    return f"<bytes, {len(data)} B>"


class ZipMember(NamedTuple):
    """A file of an archive, as described in the list at its end."""

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
    """A file object for `zipfile`; it reads the end of an object once, and limits other reads."""

    def __init__(self, reader: ByteReader) -> None:
        super().__init__(None, reader.label, size=reader.opened_identity().size, cache_type="none")
        self._reader = reader
        # the end of the list of files, usually all of it
        self._tail_start = max(0, self.size - HEAD_NBYTES)
        (self._tail,) = reader.read([Span(self._tail_start, self.size)])

    def seek(self, loc: int, whence: int = io.SEEK_SET) -> int:
        try:
            return int(super().seek(loc, whence))
        except ValueError as error:
            # this class is an OSError, which `zipfile` catches, and a ValueError, for `zip_members`
            raise io.UnsupportedOperation(str(error)) from error

    def _fetch_range(self, start: int, end: int) -> bytes:
        if end - start > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its list of files has {end - start} bytes")
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        (data,) = self._reader.read([Span(start, end)])
        return data
