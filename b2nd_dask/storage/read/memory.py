"""Frames in memory, and frames at an offset inside another object."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import xxhash

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.storage.byte_reader import ByteReader, Identity, Span, clip

if TYPE_CHECKING:
    from collections.abc import Sequence


class BytesReader(ByteReader):
    """Read byte ranges of bytes in memory."""

    identity_is_cheap = True
    batch_nbytes = 1 << 20
    max_gap = 0

    def __init__(self, data: bytes) -> None:
        self.label = bytes_label(data)
        self._data: bytes | None = data
        self._identity: Identity | None = None

    def __repr__(self) -> str:
        return f"BytesReader({self.label})"

    def identity(self) -> Identity:
        """Size and digest of the bytes."""
        # bytes cannot change; a digest of a large object costs as much as reading it
        if self._identity is None:
            data = self._open()
            self._identity = Identity(len(data), xxhash.xxh3_128_hexdigest(data))
        return self._identity

    def opened_identity(self) -> Identity:
        """Like `identity`: bytes cannot change."""
        return self.identity()

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

    Closes that reader, too. The frame must lie in the object; by default it ends with the object.
    The label for messages is by default that of the object, with the offset.
    """

    def __init__(
        self, reader: ByteReader, offset: int, nbytes: int | None = None, label: str = ""
    ) -> None:
        self.label = label or window_label(reader.label, offset)
        self.identity_is_cheap = reader.identity_is_cheap
        self.batch_nbytes = reader.batch_nbytes
        self.max_gap = reader.max_gap
        self._reader = reader
        self._offset = offset
        self._nbytes = nbytes

    def __repr__(self) -> str:
        return f"OffsetReader({self.label})"

    def identity(self) -> Identity:
        """Identity of the outer object, with the size of the frame."""
        return self._inside(self._reader.identity())

    def opened_identity(self) -> Identity:
        """Like `identity`, for the open object."""
        return self._inside(self._reader.opened_identity())

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Read byte ranges, counted from the offset; see `ByteReader.read`."""
        self._check(member)
        end = sys.maxsize if self._nbytes is None else self._nbytes
        # also rejects a negative start, which the offset would hide
        clipped = (clip(span, end) for span in spans)
        return self._reader.read(
            [Span(start + self._offset, stop + self._offset) for start, stop in clipped]
        )

    def close(self) -> None:
        """Close the reader of the outer object."""
        self._reader.close()

    def _check(self, member: str) -> None:
        self.require_no_member(member)
        # not in __init__: a remote reader needs a request for this
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


def window_label(label: str, offset: int) -> str:
    """Label of an object from an offset on, for messages."""
    return f"{label}[{offset}:]"
