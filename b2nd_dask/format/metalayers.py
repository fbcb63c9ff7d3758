"""The section of named byte strings in header (metalayers) and trailer (vlmetalayers).

Layout (docs/format.md, Metalayers), after the opening 0x93: 0xcd u16 size of the map, 0xde
u16 count, for each entry a fixstr name and 0xd2 int32 offset of its content, 0xdc u16 count, then
for each entry 0xc6 u32 length and the bytes. Offsets count from the first byte of the header or
trailer; readers follow them.

The module also names the entries of vlmeta that belong to the frame and not to the user.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from b2nd_dask.errors import FrameFormatError

#: The record of checksums (docs/integrity.md, Record).
RECORD_NAME = "b2nd.xxh3"
#: The statistics of the chunks (docs/statistics.md, Entry).
STATISTICS_NAME = "b2nd.stats"
#: Both entries are maps with these keys.
OWN_VLMETA = {
    RECORD_NAME: ("version", "array", "index", "chunks"),
    STATISTICS_NAME: ("version", "record", "dtype", "columns", "digest"),
}

#: C-Blosc2 opens no frame with more metalayers, and fails when it writes more vlmetalayers
#: (docs/format.md, Metalayers).
MAX_METALAYERS = 16
#: The length of a fixstr has five bits.
MAX_NAME = 31
_MAP_SIZE, _MAP, _ARRAY, _INT32, _BIN = 0xCD, 0xDE, 0xDC, 0xD2, 0xC6

_Value = TypeVar("_Value")


def parse_metalayers(buf: bytes, start: int, stop: int) -> dict[str, bytes]:
    """Parse the section: contents by name, in map order.

    `buf` is the whole header or trailer, from whose start offsets count; `start` is the position of
    the 0xcd behind the opening 0x93, `stop` the end of the area that contents may occupy. Raises
    `FrameFormatError` for wrong markers, too many entries, a name or content out of bounds, or a
    duplicate name.
    """
    # the size of the map is not needed, and upstream does not check it
    pos = _expect(buf, start, stop, _MAP_SIZE) + 2
    pos = _expect(buf, pos, stop, _MAP)
    count = int.from_bytes(_take(buf, pos, 2, stop), "big")
    if count > MAX_METALAYERS:
        raise FrameFormatError(f"{count} metalayers; the maximum is {MAX_METALAYERS}", offset=pos)
    pos += 2
    entries: dict[str, bytes] = {}
    for _ in range(count):
        name, pos = _parse_name(buf, pos, stop)
        if name in entries:
            raise FrameFormatError(f"the metalayer {name!r} occurs twice", offset=pos)
        pos = _expect(buf, pos, stop, _INT32)
        (offset,) = struct.unpack(">i", _take(buf, pos, 4, stop))
        entries[name] = _parse_content(buf, offset, name, start, stop)
        pos += 4
        if sum(map(len, entries.values())) > stop - start:
            raise FrameFormatError("metalayers overlap", offset=pos)
    return entries


def build_metalayers(entries: dict[str, bytes], start: int, *, counted_from: int) -> bytes:
    """Build the section, including the opening 0x93, at position `start` of its header or trailer.

    The u16 size of the map counts from `counted_from`: the 0x93 in the header, the byte behind it
    in the trailer.
    """
    names = [name.encode("utf-8") for name in entries]
    map_end = start + 1 + 3 + 3 + sum(1 + len(name) + 5 for name in names)
    offset = map_end + 3
    index = bytearray()
    for name, content in zip(names, entries.values(), strict=True):
        index += bytes([0xA0 + len(name)]) + name + struct.pack(">Bi", _INT32, offset)
        offset += 5 + len(content)
    head = struct.pack(">BBHBH", 0x93, _MAP_SIZE, map_end - counted_from, _MAP, len(entries))
    contents = b"".join(struct.pack(">BI", _BIN, len(c)) + c for c in entries.values())
    return head + bytes(index) + struct.pack(">BH", _ARRAY, len(entries)) + contents


def _parse_name(buf: bytes, pos: int, stop: int) -> tuple[str, int]:
    marker = _take(buf, pos, 1, stop)[0]
    if marker & 0xE0 != 0xA0:
        raise FrameFormatError(f"0x{marker:02x} does not start a metalayer name", offset=pos)
    raw = _take(buf, pos + 1, marker & 0x1F, stop)
    try:
        return raw.decode("utf-8"), pos + 1 + len(raw)
    except UnicodeDecodeError as error:
        raise FrameFormatError(f"the metalayer name {raw!r} is not UTF-8", offset=pos) from error


def _parse_content(buf: bytes, offset: int, name: str, start: int, stop: int) -> bytes:
    if not start <= offset <= stop - 5:
        raise FrameFormatError(
            f"the metalayer {name!r} lies at {offset}, outside {start}..{stop}", offset=start
        )
    pos = _expect(buf, offset, stop, _BIN)
    length = int.from_bytes(_take(buf, pos, 4, stop), "big")
    return _take(buf, pos + 4, length, stop)


def _expect(buf: bytes, pos: int, stop: int, marker: int) -> int:
    found = _take(buf, pos, 1, stop)[0]
    if found != marker:
        raise FrameFormatError(f"0x{found:02x} where 0x{marker:02x} is expected", offset=pos)
    return pos + 1


def _take(buf: bytes, pos: int, length: int, stop: int) -> bytes:
    if not 0 <= pos <= pos + length <= min(stop, len(buf)):
        problem = f"{length} bytes are needed, but the section ends at {stop}"
        raise FrameFormatError(problem, offset=pos)
    return buf[pos : pos + length]


def users_vlmeta(vlmeta: Mapping[str, _Value]) -> dict[str, _Value]:
    """Select the user's vlmeta: all entries but those of the frame.

    python-blosc2 lists both together, so programs that copy all entries into another frame copy
    both.
    """
    return {name: value for name, value in vlmeta.items() if name not in OWN_VLMETA}


def is_own_value(name: str, value: object) -> bool:
    """Whether a vlmeta value, as python-blosc2 lists it, is an entry of the frame itself."""
    return isinstance(value, Mapping) and set(value) >= set(OWN_VLMETA[name])
