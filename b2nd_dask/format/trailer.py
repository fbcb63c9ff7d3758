"""The trailer: variable-length metalayers and the fingerprint; before it, the write id.

docs/format.md, Trailer and Write id. Other software reads the index chunk by its own length and
finds the trailer from the frame's end, and so passes over what lies between. Whatever changes a
chunk writes the index anew, and the trailer close behind it: the write id goes with the state that
it marks. A frame without chunks has no index, and no write id.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import xxhash

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.format.metalayers import build_metalayers, parse_metalayers

#: Trailer without vlmetalayers.
MIN_TRAILER_LEN = 35
#: Behind the vlmetalayers: 0xce, u32 trailer length, 0xd8, fingerprint type, 16 bytes.
TAIL_LEN = 23
#: Type of a fingerprint; the largest that there is.
_XXH3_128 = 3
#: Room for a fingerprint; it ends the trailer.
_ROOM = 16

#: Bytes of the key of a write.
KEY_NBYTES = 8
_WRITE_ID_MAGIC = b"b2ndmark"
WRITE_ID_NBYTES = len(_WRITE_ID_MAGIC) + KEY_NBYTES


def trailer_len_of(tail: bytes, room: int) -> int:
    """Read the length of the trailer from the last bytes of a frame.

    Parameters
    ----------
    tail : bytes
        The frame's end, 23 bytes or more.
    room : int
        Bytes between the header's end and the frame's end.

    Raises
    ------
    FrameFormatError
        The marker is missing, or a length that cannot be.
    """
    if len(tail) < TAIL_LEN or tail[-TAIL_LEN] != 0xCE or tail[-18] != 0xD8:
        raise FrameFormatError(
            "no trailer at the frame's end: the frame is damaged, or its length is wrong"
        )
    (length,) = struct.unpack_from(">I", tail, len(tail) - TAIL_LEN + 1)
    if not MIN_TRAILER_LEN <= length <= room:
        raise FrameFormatError(f"a trailer of {length} bytes, {room} are there")
    return int(length)


def check_trailer_start(buf: bytes) -> None:
    """Check that bytes begin as a trailer.

    Parameters
    ----------
    buf : bytes
        Its first bytes, 3 or more.

    Raises
    ------
    FrameFormatError
    """
    if buf[0] != 0x94 or buf[1] > 1 or buf[2] != 0x93:
        raise FrameFormatError(f"a trailer starts with 94 01 93, not {buf[:3].hex(' ')}", offset=0)


def parse_trailer(buf: bytes) -> dict[str, bytes]:
    """Read a whole trailer, of as many bytes as `trailer_len_of` says.

    Returns
    -------
    dict of str to bytes
        Variable-length metalayers by name: each a compressed chunk of a msgpack value.

    Raises
    ------
    FrameFormatError
        Wrong markers, or vlmetalayers out of bounds.
    """
    check_trailer_start(buf)
    vlmeta = parse_metalayers(buf, 3, len(buf) - TAIL_LEN)
    kind = buf[-17]
    if kind > _XXH3_128:
        raise FrameFormatError(f"fingerprint type {kind}, known are 0 to 3", offset=len(buf) - 17)
    return vlmeta


def build_trailer(vlmeta: Mapping[str, bytes], *, fingerprint: bool = False) -> bytes:
    """Write a trailer; with a fingerprint of all bytes before it, which upstream does not write."""
    section = build_metalayers(dict(vlmeta), 2, counted_from=3)
    kind, length = _XXH3_128 if fingerprint else 0, 2 + len(section) + TAIL_LEN
    covered = b"\x94\x01" + section + struct.pack(">BIBB", 0xCE, length, 0xD8, kind)
    return covered + (xxhash.xxh3_128_digest(covered) if fingerprint else bytes(_ROOM))


def has_no_fingerprint(trailer: bytes) -> bool:
    """Whether a trailer has no fingerprint: python-blosc2 writes none, at every change."""
    return trailer[-1 - _ROOM :] == bytes(1 + _ROOM)


def fingerprint_matches(trailer: bytes) -> bool:
    """Whether a trailer has the fingerprint of its bytes."""
    digest = xxhash.xxh3_128_digest(trailer[:-_ROOM])
    return trailer.endswith(bytes([_XXH3_128]) + digest)


def is_as_built(trailer: bytes, vlmeta: Mapping[str, bytes]) -> bool:
    """Whether a trailer is, up to the fingerprint, what every writer writes for its entries."""
    return build_trailer(vlmeta)[: -1 - _ROOM] == trailer[: -1 - _ROOM]


def build_write_id(key: str) -> bytes:
    """Write what says which write made a frame.

    Parameters
    ----------
    key : str
        The key of a write, 16 hexadecimal digits.

    Examples
    --------
    >>> build_write_id("41424344" * 2)
    b'b2ndmarkABCDABCD'
    """
    return _WRITE_ID_MAGIC + bytes.fromhex(key)


def parse_write_id(buf: bytes) -> str | None:
    """Read the key of a write from the `WRITE_ID_NBYTES` bytes before a trailer, else None."""
    if len(buf) != WRITE_ID_NBYTES or not buf.startswith(_WRITE_ID_MAGIC):
        return None
    return buf[len(_WRITE_ID_MAGIC) :].hex()
