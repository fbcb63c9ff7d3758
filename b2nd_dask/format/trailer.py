"""The trailer: variable-length metalayers and the fingerprint (REFERENCE 5)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.format.metalayers import build_metalayers, parse_metalayers

#: Trailer without vlmetalayers.
MIN_TRAILER_LEN = 35
#: Behind the vlmetalayers: 0xce, u32 trailer length, 0xd8, fingerprint type, 16 bytes.
TAIL_LEN = 23
#: Bytes of a fingerprint by its type.
_FINGERPRINT_LEN = {0: 0, 1: 4, 2: 8, 3: 16}


@dataclass(frozen=True, slots=True)
class Trailer:
    """What stands behind the index chunk."""

    vlmeta: Mapping[str, bytes]
    """Variable-length metalayers by name: each a compressed chunk of a msgpack value."""
    fingerprint: bytes
    """0, 4, 8 or 16 bytes. Upstream neither writes nor checks one: 0 bytes in its files."""


def trailer_len_of(tail: bytes, room: int) -> int:
    """Length of the trailer, from the last bytes of a frame.

    Parameters
    ----------
    tail : bytes
        The frame's end, 23 bytes or more.
    room : int
        Bytes between the header's end and the frame's end.

    Returns
    -------
    int

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
    """Refuse what does not begin as a trailer.

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


def parse_trailer(buf: bytes) -> Trailer:
    """Read a whole trailer.

    Parameters
    ----------
    buf : bytes
        As many bytes as `trailer_len_of` says.

    Returns
    -------
    Trailer

    Raises
    ------
    FrameFormatError
        Wrong markers, or vlmetalayers out of bounds.
    """
    check_trailer_start(buf)
    vlmeta = parse_metalayers(buf, 3, len(buf) - TAIL_LEN)
    kind = buf[-17]
    if kind not in _FINGERPRINT_LEN:
        raise FrameFormatError(f"fingerprint type {kind}, known are 0 to 3", offset=len(buf) - 17)
    return Trailer(vlmeta, buf[len(buf) - 16 :][: _FINGERPRINT_LEN[kind]])


def build_trailer(trailer: Trailer) -> bytes:
    """Write a trailer.

    Parameters
    ----------
    trailer : Trailer

    Returns
    -------
    bytes
    """
    section = build_metalayers(dict(trailer.vlmeta), 2, counted_from=3)
    kind = {length: kind for kind, length in _FINGERPRINT_LEN.items()}[len(trailer.fingerprint)]
    tail = struct.pack(">BIBB", 0xCE, 2 + len(section) + TAIL_LEN, 0xD8, kind)
    return b"\x94\x01" + section + tail + trailer.fingerprint.ljust(16, b"\0")
