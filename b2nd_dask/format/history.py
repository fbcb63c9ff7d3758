"""The updates that brought a frame to its present state, newest last (docs/format.md, History).

They stand between the index chunk and the write id. Other software passes over them, and loses them
with the write id at any change: where a history is, only this package changed the frame since the
history began.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

from b2nd_dask.format.trailer import WRITE_ID_NBYTES, parse_write_id

#: Bytes that name one state of a frame.
TOKEN_NBYTES = 8
#: The base of a history that has lost its oldest updates.
UNKNOWN = bytes(TOKEN_NBYTES)
#: What a reader passes over before the trailer has 4 kiB at most.
MAX_UPDATES = 160

_MAGIC = b"b2ndpast"
#: Behind the updates: magic, base, digest of the metadata, number of updates.
_END = struct.Struct("<8s8s8sQ")
#: Key, milliseconds since 1970, first and last chunk.
_UPDATE = struct.Struct("<8sQII")
#: The most bytes that a history and a write id have together.
MARKS_NBYTES = MAX_UPDATES * _UPDATE.size + _END.size + WRITE_ID_NBYTES


class PastUpdate(NamedTuple):
    """One change of a frame in place."""

    key: str
    """Of the write: 16 hexadecimal digits."""
    published: int
    """Milliseconds since 1970, by the clock of its machine."""
    first: int
    """Number of the first chunk of the box of chunks that it wrote, in the present grid."""
    last: int
    """Number of the last chunk of the box; smaller than `first` if nothing was written."""


class History(NamedTuple):
    """Updates of a frame, the oldest first."""

    base: bytes = UNKNOWN
    """Token of the state that the first was made on; `UNKNOWN` if older ones are left out."""
    updates: tuple[PastUpdate, ...] = ()


def metadata_digest(array_meta: bytes, vlmeta: Mapping[str, bytes]) -> bytes:
    """Digest what other software may change and leave the history where it is.

    Parameters
    ----------
    array_meta : bytes
        Content of the metalayer that gives the array's shape.
    vlmeta : mapping of str to bytes
        The user's entries.
    """
    digest = xxhash.xxh3_64(array_meta)
    for name, content in vlmeta.items():
        digest.update(b"%d %d " % (len(name), len(content)) + name.encode() + content)
    return digest.digest()


def build_history(history: History, metadata: bytes) -> bytes:
    """Write a history; older updates than the last `MAX_UPDATES` are left out.

    Parameters
    ----------
    metadata : bytes
        From `metadata_digest`.

    Examples
    --------
    >>> past = History(b"basebase", (PastUpdate("00" * 8, 1, 0, 3),))
    >>> parse_history(build_history(past, b"metadata"), b"metadata") == past
    True
    """
    base, updates = history
    if len(updates) > MAX_UPDATES:
        base, updates = UNKNOWN, updates[-MAX_UPDATES:]
    rows = [
        _UPDATE.pack(bytes.fromhex(key), time, first, last) for key, time, first, last in updates
    ]
    return b"".join(rows) + _END.pack(_MAGIC, base, metadata, len(rows))


def parse_history(before: bytes, metadata: bytes | None) -> History:
    """Read the history that ends at the end of some bytes; an empty one where none does.

    One of a frame with other metadata does not count: other software changed these. None for any.
    """
    if len(before) < _END.size:
        return History()
    magic, base, digest, count = _END.unpack_from(before, len(before) - _END.size)
    start = len(before) - _END.size - count * _UPDATE.size
    if magic != _MAGIC or not 0 < count <= MAX_UPDATES or start < 0:
        return History()
    if metadata not in (None, digest):
        return History()
    rows = _UPDATE.iter_unpack(before[start : len(before) - _END.size])
    return History(base, tuple(PastUpdate(row[0].hex(), *row[1:]) for row in rows))


def parse_marks(before_trailer: bytes, metadata: bytes | None) -> tuple[str | None, History]:
    """Read the write id and the history that stand before a trailer.

    Parameters
    ----------
    before_trailer : bytes
        What ends where the trailer starts; `MARKS_NBYTES` are enough.
    metadata : bytes or None
        As for `parse_history`.

    Returns
    -------
    key : str or None
        Of the last write; None where other software made the frame, or changed it since.
    history : History
    """
    key = parse_write_id(before_trailer[-WRITE_ID_NBYTES:])
    if key is None:
        return None, History()
    history = parse_history(before_trailer[-MARKS_NBYTES:-WRITE_ID_NBYTES], metadata)
    if history.updates and history.updates[-1].key != key:
        return key, History()
    return key, history
