"""The trailer: variable-length metalayers and fingerprint; in front of it, history and write id.

docs/format.md, Trailer, Write id and History. Other software ignores the bytes between index chunk
and trailer: it takes the length of the index chunk from its header, and finds the trailer from the
frame's end. When it changes a chunk, it writes the trailer directly behind a new index, without
write id and history. So if a frame has a history, only this package has changed chunks since the
base of the history. A frame without chunks has no index, and neither write id nor history.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.format.metalayers import build_metalayers, parse_metalayers

#: Trailer without vlmetalayers.
MIN_TRAILER_LEN = 35
#: Length of the end: 0xce, u32 trailer length, 0xd8, fingerprint type, 16 bytes.
TAIL_LEN = 23
#: The fingerprint type with the most bytes.
_XXH3_128 = 3
#: Bytes for a fingerprint, at the end of the trailer.
_ROOM = 16

#: Bytes of the key in a write id.
KEY_NBYTES = 8
_WRITE_ID_MAGIC = b"b2ndmark"
WRITE_ID_NBYTES = len(_WRITE_ID_MAGIC) + KEY_NBYTES
#: Bytes of the token that identifies a state of a frame.
TOKEN_NBYTES = 8
#: Base of a history that has dropped the updates between its first and its second one.
UNKNOWN = bytes(TOKEN_NBYTES)
#: Most updates in a history, for at most 4 KiB in front of the trailer.
MAX_UPDATES = 160
_HISTORY_MAGIC = b"b2ndpast"
#: Behind the updates: magic, base, metadata digest, number of updates.
_END = struct.Struct("<8s8s8sQ")
#: Key, milliseconds since 1970, first and last chunk.
_UPDATE = struct.Struct("<8sQII")
#: Most bytes of a history and a write id together.
MARKS_NBYTES = MAX_UPDATES * _UPDATE.size + _END.size + WRITE_ID_NBYTES


def trailer_len_of(tail: bytes, room: int) -> int:
    """Read the length of the trailer from the last bytes of a frame, at least 23.

    `room` is the number of bytes behind the header. Raises `FrameFormatError` if the marker is
    missing, or the length is invalid.
    """
    if len(tail) < TAIL_LEN or tail[-TAIL_LEN] != 0xCE or tail[-18] != 0xD8:
        raise FrameFormatError(
            "no trailer at the frame's end: the frame is damaged, or its length is wrong"
        )
    (length,) = struct.unpack_from(">I", tail, len(tail) - TAIL_LEN + 1)
    if not MIN_TRAILER_LEN <= length <= room:
        raise FrameFormatError(f"a trailer of {length} bytes, not {MIN_TRAILER_LEN} to {room}")
    return int(length)


def check_trailer_start(buf: bytes) -> None:
    """Raise `FrameFormatError` unless `buf`, of at least 3 bytes, starts like a trailer."""
    if buf[0] != 0x94 or buf[1] > 1 or buf[2] != 0x93:
        raise FrameFormatError(f"a trailer starts with 94 01 93, not {buf[:3].hex(' ')}", offset=0)


def parse_trailer(buf: bytes) -> dict[str, bytes]:
    """Parse a whole trailer into its vlmetalayers by name, each a compressed msgpack value.

    Raises `FrameFormatError` for wrong markers, or vlmetalayers out of bounds.
    """
    check_trailer_start(buf)
    vlmeta = parse_metalayers(buf, 3, len(buf) - TAIL_LEN)
    kind = buf[-17]
    if kind > _XXH3_128:
        raise FrameFormatError(f"fingerprint type {kind}, known are 0 to 3", offset=len(buf) - 17)
    return vlmeta


def build_trailer(vlmeta: Mapping[str, bytes], *, fingerprint: bool = False) -> bytes:
    """Build a trailer, optionally with a fingerprint of all its bytes (upstream writes none)."""
    section = build_metalayers(dict(vlmeta), 2, counted_from=3)
    kind, length = _XXH3_128 if fingerprint else 0, 2 + len(section) + TAIL_LEN
    covered = b"\x94\x01" + section + struct.pack(">BIBB", 0xCE, length, 0xD8, kind)
    return covered + (xxhash.xxh3_128_digest(covered) if fingerprint else bytes(_ROOM))


def has_no_fingerprint(trailer: bytes) -> bool:
    """Whether a trailer has no fingerprint: python-blosc2 drops it at every change."""
    return trailer[-1 - _ROOM :] == bytes(1 + _ROOM)


def fingerprint_matches(trailer: bytes) -> bool:
    """Whether the fingerprint of a trailer matches its bytes."""
    digest = xxhash.xxh3_128_digest(trailer[:-_ROOM])
    return trailer.endswith(bytes([_XXH3_128]) + digest)


class PastUpdate(NamedTuple):
    """One update of a frame in place."""

    key: str
    """Key of the write, 16 hexadecimal digits."""
    published: int
    """Milliseconds since 1970, by the clock of the writer's machine."""
    first: int
    """Number of the first chunk in the written box of chunks, in the current grid."""
    last: int
    """Number of the last chunk of the box; smaller than `first` if nothing was written."""


class History(NamedTuple):
    """Updates of a frame, oldest first. The first one is usually the write of the whole frame."""

    base: bytes = UNKNOWN
    """Token of the state before the first update; `UNKNOWN` if updates were dropped."""
    updates: tuple[PastUpdate, ...] = ()


def metadata_digest(array_meta: bytes, vlmeta: Mapping[str, bytes]) -> bytes:
    """Compute a digest of the array metalayer and the user's vlmeta.

    Other software may change these without removing the history.
    """
    digest = xxhash.xxh3_64(array_meta)
    for name, content in vlmeta.items():
        digest.update(b"%d %d " % (len(name), len(content)) + name.encode() + content)
    return digest.digest()


def build_marks(key: str, history: History | None, metadata: bytes) -> bytes:
    """Build the bytes before the trailer: a history of at most `MAX_UPDATES` updates, a write id.

    `key` is that of the write, 16 hexadecimal digits; `metadata` is the `metadata_digest`. Of a
    longer history the oldest updates are dropped, but not the first, the write of the whole frame.

    Examples
    --------
    >>> build_marks("41424344" * 2, None, b"")
    b'b2ndmarkABCDABCD'
    """
    write_id = _WRITE_ID_MAGIC + bytes.fromhex(key)
    if history is None:
        return write_id
    base, updates = history
    if len(updates) > MAX_UPDATES:
        base, updates = UNKNOWN, (updates[0], *updates[1 - MAX_UPDATES :])
    rows = [_UPDATE.pack(bytes.fromhex(update.key), *update[1:]) for update in updates]
    return b"".join(rows) + _END.pack(_HISTORY_MAGIC, base, metadata, len(rows)) + write_id


def parse_marks(before_trailer: bytes) -> tuple[str | None, History, bytes]:
    """Parse the write id and the history before a trailer; the last `MARKS_NBYTES` suffice.

    Returns the key of the last write, the history, and the digest of the metadata at that write.
    The key is None if other software made or changed the frame. The history is empty if there is
    none, or if it belongs to another write.
    """
    marks, write_id = before_trailer[:-WRITE_ID_NBYTES], before_trailer[-WRITE_ID_NBYTES:]
    if len(write_id) < WRITE_ID_NBYTES or not write_id.startswith(_WRITE_ID_MAGIC):
        return None, History(), b""
    key = write_id[len(_WRITE_ID_MAGIC) :].hex()
    if len(marks) >= _END.size:
        rows, end = marks[: -_END.size], marks[-_END.size :]
        magic, base, metadata, count = _END.unpack(end)
        if magic == _HISTORY_MAGIC and 0 < count <= min(MAX_UPDATES, len(rows) // _UPDATE.size):
            found = _UPDATE.iter_unpack(rows[-count * _UPDATE.size :])
            updates = tuple(PastUpdate(row[0].hex(), *row[1:]) for row in found)
            if updates[-1].key == key:
                return key, History(base, updates), metadata
    return key, History(), b""
