"""Metalayers: named byte strings in header and trailer, one of which makes a frame an array.

The section in header (metalayers) and trailer (vlmetalayers) has this layout (docs/format.md,
Metalayers), after the opening 0x93: 0xcd u16 size of the map, 0xde u16 count, for each entry a
fixstr name and 0xd2 int32 offset of its content, 0xdc u16 count, then for each entry 0xc6 u32
length and the bytes. Offsets count from the first byte of the header or trailer; readers follow
them. Some entries of vlmeta belong to the frame and not to the user.

The metalayer of the array is b2nd, in its current or early form, or Caterva. Its layout
(docs/format.md, Array metalayer): fixarray marker, version, ndim, shape as int64, chunk shape and
block shape as int32; then nothing (Caterva, the first b2nd files), a str32 dtype (early b2nd), or a
dtype format and a str32 dtype (current b2nd). Readers tell the forms apart by the bytes behind the
block shape. The number of fields may be wrong: c-blosc2 8123f7ea has a 6 for seven.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from b2nd_dask.errors import OPEN_STORE, FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.dtypes import MAX_DTYPE_STRING, format_dtype, parse_dtype
from b2nd_dask.format.grid import Grid

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

MAX_NDIM = 16
#: The limit of python-caterva.
MAX_CATERVA_NDIM = 8
#: An int32 counts the bytes of the int64 offsets.
MAX_CHUNKS = 2**28 - 1
#: Bytes of a chunk: the largest int32 less the header (docs/format.md, Limits).
MAX_CHUNK_NBYTES = 2**31 - 33

#: Metalayers that make a frame an array; all others belong to the user.
_OWN_METALAYERS = ("b2nd", "caterva")

#: Fixed metalayers of frames that are no plain array. Their vlmeta names other files, which a
#: reader must not follow (docs/format.md, Frames that are no plain array).
_SHELLS = {
    "b2o": "a python-blosc2 object (a lazy expression or the like)",
    "LazyArray": "a saved lazy expression",
    "proxy-source": "the cache of a proxy, with chunks that were never fetched",
}

#: Markers of msgpack.
_MAP_SIZE, _MAP, _ARRAY, _BIN = 0xCD, 0xDE, 0xDC, 0xC6
_INT32, _INT64, _STR32 = 0xD2, 0xD3, 0xDB

_Value = TypeVar("_Value")


def parse_metalayers(buf: bytes, start: int, stop: int) -> dict[str, bytes]:
    """Parse the section: contents by name, in map order.

    `buf` is the whole header or trailer; offsets count from its start. `start` is the position of
    the 0xcd behind the opening 0x93, `stop` the end of the contents. Raises `FrameFormatError` for
    wrong markers, too many entries, a name or content out of bounds, or a duplicate name.
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

    python-blosc2 does not distinguish them, so programs may copy both into another frame.
    """
    return {name: value for name, value in vlmeta.items() if name not in OWN_VLMETA}


def is_own_value(name: str, value: object) -> bool:
    """Whether an unpacked vlmeta value is an entry of the frame itself, not of the user."""
    return isinstance(value, Mapping) and set(value) >= set(OWN_VLMETA[name])


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """The fields of the array metalayer."""

    shape: tuple[int, ...]
    """Like `chunks` and `blocks`, without the axes of elements that are arrays."""
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None if the metalayer has no dtype."""


def array_meta_of(metalayers: Mapping[str, bytes]) -> ArrayMeta:
    """Find and parse the array metalayer among the fixed metalayers of a header.

    Raises `UnsupportedFrameError` if the frame is valid, but not a plain array, and
    `FrameFormatError` if the metalayer violates the format.
    """
    for shell, meaning in _SHELLS.items():
        if shell in metalayers:
            raise UnsupportedFrameError(
                f"this frame is {meaning}, not a plain array (metalayer {shell!r}); "
                "open it with python-blosc2, and save its values as an array"
            )
    name = name_of_array(metalayers)
    if name in metalayers:
        with locating(part=f"the {name} metalayer"):
            return parse_array_meta(metalayers[name])
    if "b2embed" in metalayers:
        raise UnsupportedFrameError(
            f"a .b2e is a store of python-blosc2, not an array: {OPEN_STORE}"
        )
    others = ", ".join(map(repr, metalayers)) or "none"
    raise UnsupportedFrameError(
        f"a frame without an array: it has no b2nd or caterva metalayer (metalayers: {others}); "
        "it is a plain SChunk or another container of python-blosc2"
    )


def name_of_array(metalayers: Mapping[str, bytes]) -> str:
    """Name the metalayer that holds the array's shape."""
    return "b2nd" if "b2nd" in metalayers else "caterva"


def users_meta(metalayers: Mapping[str, bytes]) -> dict[str, bytes]:
    """Select the user's metalayers: all but those of the array."""
    return {name: raw for name, raw in metalayers.items() if name not in _OWN_METALAYERS}


def parse_array_meta(raw: bytes) -> ArrayMeta:
    """Parse the content of an array metalayer, of any form.

    Raises `FrameFormatError` for wrong markers, lengths or sizes, `UnsupportedFrameError` for a
    dtype format other than NumPy's, or an object dtype.
    """
    if len(raw) < 6 or raw[0] & 0xF0 != 0x90 or raw[2] > MAX_NDIM:
        raise FrameFormatError(
            f"it starts with {raw[:3].hex(' ')}, unlike an array of up to 16 dimensions"
        )
    ndim = raw[2]
    shape, pos = _parse_sizes(raw, 3, ndim, _INT64, ">q")
    chunks, pos = _parse_sizes(raw, pos, ndim, _INT32, ">i")
    blocks, pos = _parse_sizes(raw, pos, ndim, _INT32, ">i")
    _check_sizes(shape, chunks, blocks)
    return ArrayMeta(shape, chunks, blocks, _parse_dtype_fields(raw, pos))


def with_shape(raw: bytes, shape: tuple[int, ...]) -> bytes:
    """Replace the shape in an array metalayer, as a resize does; the number of axes stays."""
    return raw[:3] + _build_sizes(">Bq", _INT64, shape) + raw[4 + 9 * len(shape) :]


def build_array_meta(grid: Grid, dtype: np.dtype[Any] | None) -> bytes:
    """Build the content of a b2nd metalayer in the current form, with 7 fields.

    Without a dtype, build that of a Caterva metalayer; the grid then has at most `MAX_CATERVA_NDIM`
    dimensions.
    """
    shape = _build_sizes(">Bq", _INT64, grid.shape)
    sizes = (_build_sizes(">Bi", _INT32, axes) for axes in (grid.chunks, grid.blocks))
    fields = b"".join([bytes([0, grid.ndim]), shape, *sizes])
    if dtype is None:
        return b"\x95" + fields
    text = format_dtype(dtype)
    return b"\x97" + fields + struct.pack(">BBI", 0, _STR32, len(text)) + text


def _build_sizes(code: str, marker: int, sizes: tuple[int, ...]) -> bytes:
    # with 16 dimensions the first byte becomes 0xa0, as in files of python-blosc2
    # (docs/format.md, Array metalayer)
    return bytes([0x90 + len(sizes)]) + b"".join(struct.pack(code, marker, n) for n in sizes)


def _parse_sizes(
    raw: bytes, pos: int, ndim: int, marker: int, code: str
) -> tuple[tuple[int, ...], int]:
    width = 1 + struct.calcsize(code)
    stop = pos + 1 + ndim * width
    if len(raw) < stop or raw[pos] != 0x90 + ndim:
        raise FrameFormatError(f"a list of {ndim} sizes is expected at byte {pos}")
    sizes: list[int] = []
    for at in range(pos + 1, stop, width):
        if raw[at] != marker:
            raise FrameFormatError(
                f"0x{raw[at]:02x} where 0x{marker:02x} is expected, at byte {at}"
            )
        sizes.extend(struct.unpack_from(code, raw, at + 1))
    return tuple(sizes), stop


def _check_sizes(shape: tuple[int, ...], chunks: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    # an empty array may have chunks and blocks of 0 (docs/format.md, Geometry)
    least = 0 if 0 in shape else 1
    if any(n < 0 for n in shape) or any(
        b < least or b > c for c, b in zip(chunks, blocks, strict=True)
    ):
        raise FrameFormatError(f"impossible sizes: shape {shape}, chunks {chunks}, blocks {blocks}")


def _parse_dtype_fields(raw: bytes, pos: int) -> np.dtype[Any] | None:
    if pos == len(raw):
        return None
    if raw[pos] != _STR32:
        if raw[pos] != 0:
            raise UnsupportedFrameError(f"dtype format {raw[pos]}; only 0 (NumPy) is supported")
        pos += 1
    if len(raw) < pos + 5 or raw[pos] != _STR32:
        raise FrameFormatError(f"a dtype string is expected at byte {pos}")
    (length,) = struct.unpack_from(">I", raw, pos + 1)
    if length > MAX_DTYPE_STRING or pos + 5 + length != len(raw):
        raise FrameFormatError(
            f"the dtype string should have {length} bytes, but {len(raw) - pos - 5} follow"
        )
    return parse_dtype(raw[pos + 5 :])
