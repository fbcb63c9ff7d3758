"""The metalayer that makes a frame an array: b2nd (current and early form) and Caterva.

Layout (docs/format.md, Array metalayer): fixarray marker, version, ndim, shape as int64, chunk
shape and block shape as int32; then nothing (Caterva, the first b2nd files), a str32 dtype (early
b2nd), or a dtype format and a str32 dtype (current b2nd). Readers tell the forms apart by the bytes
behind the block shape. The number of fields may be wrong: c-blosc2 8123f7ea has a 6 for seven.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from b2nd_dask.errors import OPEN_STORE, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.dtypes import MAX_DTYPE_STRING, format_dtype, parse_dtype
from b2nd_dask.format.grid import Grid

MAX_NDIM = 16
#: The limit of python-caterva.
MAX_CATERVA_NDIM = 8
#: An int32 counts the bytes of the int64 offsets.
MAX_CHUNKS = 2**28 - 1
#: Bytes of a chunk: the largest int32 less the header (docs/format.md, Limits).
MAX_CHUNK_NBYTES = 2**31 - 33

#: Metalayers that make a frame an array; all others belong to the user.
_OWN_METALAYERS = ("b2nd", "caterva")
_INT32, _INT64, _STR32 = 0xD2, 0xD3, 0xDB

#: Fixed metalayers of frames that are no plain array. Their vlmeta names other files, which a
#: reader must not follow (docs/format.md, Frames that are no plain array).
_SHELLS = {
    "b2o": "a python-blosc2 object (a lazy expression or the like)",
    "LazyArray": "a saved lazy expression",
    "proxy-source": "the cache of a proxy, with chunks that were never fetched",
}


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """The fields of the array metalayer."""

    shape: tuple[int, ...]
    """Without the axes of elements that are arrays, as `chunks` and `blocks`."""
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
        try:
            return parse_array_meta(metalayers[name])
        except (FrameFormatError, UnsupportedFrameError) as error:
            error.problem = f"in the {name} metalayer: {error.problem}"
            raise
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
    """Replace the shape in an array metalayer by one of as many dimensions, as a resize does."""
    return raw[:3] + _build_sizes(">Bq", _INT64, shape) + raw[4 + 9 * len(shape) :]


def build_array_meta(grid: Grid, dtype: np.dtype[Any] | None) -> bytes:
    """Build the content of an array metalayer: of b2nd in the current form, with 7 fields.

    Without a dtype, that of a Caterva metalayer: the same sizes, and the grid has at most
    `MAX_CATERVA_NDIM` dimensions.
    """
    shape = _build_sizes(">Bq", _INT64, grid.shape)
    sizes = (_build_sizes(">Bi", _INT32, axes) for axes in (grid.chunks, grid.blocks))
    fields = b"".join([bytes([0, grid.ndim]), shape, *sizes])
    if dtype is None:
        return b"\x95" + fields
    text = format_dtype(dtype)
    return b"\x97" + fields + struct.pack(">BBI", 0, _STR32, len(text)) + text


def _build_sizes(code: str, marker: int, sizes: tuple[int, ...]) -> bytes:
    # 16 dimensions overflow the first byte to 0xa0, as in files of python-blosc2
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
