"""The frame header: 87 fixed bytes, then the metalayers (docs/format.md, Frame header)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from b2nd_dask.errors import OPEN_STORE, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.chunk.compression import MAX_TYPESIZE, Compression
from b2nd_dask.format.dtypes import MAX_ITEMSIZE
from b2nd_dask.format.grid import MAX_NBYTES, Grid
from b2nd_dask.format.metalayers import (
    MAX_CHUNK_NBYTES,
    MAX_CHUNKS,
    MAX_NDIM,
    ArrayMeta,
    array_meta_of,
    build_metalayers,
    name_of_array,
    parse_metalayers,
)

MAGIC = b"b2frame\0"
#: Fixed part of the header; the metalayers section starts behind it.
FIXED_LEN = 87
#: Shortest header: the fixed part and an empty metalayers section.
MIN_HEADER_LEN = 97
#: Shortest frame that C-Blosc2 opens.
MIN_FRAME_LEN = 112
#: Every open reads the whole header; its int32 length could otherwise claim 2 GiB.
MAX_HEADER_LEN = 1 << 24

#: Between markers: magic, lengths of header and frame; version and flags, kind of frame, level and
#: codec, split mode; sizes; threads for compression and decompression; whether there are
#: vlmetalayers; filter slots, filters, codec, its parameter, those of the filters, dictionary.
_FIXED = struct.Struct(">2x8sxixQx4Bxqxqxixixixhxh BxB 6sBB6sBx")
_FILTER_SLOTS = 6
_OFFSETS_64 = 1
_VARIABLE_CHUNKS, _VL_BLOCKS = 0x40, 0x80
#: Codec nibble of the header for plug-in codecs: byte 77 has the codec.
_PLUGIN_CODEC = 6
#: Bytes that each writer may set: compression parameters and numbers of threads of later writes.
_FREE = (slice(27, 29), slice(63, 65), slice(66, 68), slice(71, 86))
#: Positions of the msgpack markers, and the markers. C-Blosc2 checks none of them
#: (docs/format.md, Frame header), but every writer writes them.
_MARKED = (0, 1, 10, 15, 24, 29, 38, 47, 52, 57, 62, 65, 69, FIXED_LEN)
_MARKERS = bytes.fromhex("9e a8 d2 cf a4 d3 d3 d2 d2 d2 d1 d1 d8 93")


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header's fields that a reader or writer needs."""

    header_len: int
    """Bytes of the header, metalayers included. Chunk offsets count from here."""
    frame_len: int
    """Bytes of the frame; for a sparse frame, of ``chunks.b2frame``."""
    sparse: bool
    """Whether the chunks are files in a directory."""
    nbytes: int
    """Uncompressed bytes of all chunks, padding included."""
    cbytes: int
    """Bytes of the data region, or the sum of the chunk files."""
    typesize: int
    """Bytes of an element."""
    blocksize: int
    """Uncompressed bytes of a block."""
    chunksize: int
    """Uncompressed bytes of a chunk."""
    compression: Compression
    metalayers: Mapping[str, bytes]
    """Fixed metalayers by name, undecoded."""

    @property
    def index_start(self) -> int:
        """Position of the index chunk in the frame."""
        return self.header_len if self.sparse else self.header_len + self.cbytes

    @property
    def array_meta(self) -> bytes:
        """Content of the metalayer that holds the array's shape."""
        return self.metalayers[name_of_array(self.metalayers)]


#: First bytes of a frame: a msgpack array whose first element is the magic.
_START = b"\x9e\xa8" + MAGIC
#: First bytes of other file formats that users may confuse with frames.
_OTHER_FORMATS = {
    b"\x89HDF\r\n": " (it is an HDF5 file: h5py reads it)",
    b"\x93NUMPY": " (it is a NumPy file: numpy.load reads it)",
    b"PK\x03\x04": (
        " (it is a ZIP archive; zip://NAME.b2nd::PATH is a frame inside it. A .b2z is a store of "
        f"python-blosc2: {OPEN_STORE})"
    ),
}


def header_len_of(head: bytes) -> int:
    """Read the length of the header, the bytes that `parse_header` needs.

    `head` needs the first 112 bytes, the shortest length of a frame. Raises `FrameFormatError` if
    it is shorter, the magic is missing, or the length is invalid.
    """
    if head[2:10] != MAGIC and not _START.startswith(head):
        guess = next((what for magic, what in _OTHER_FORMATS.items() if head.startswith(magic)), "")
        raise FrameFormatError(
            f"not a Blosc2 frame: {head[:10]!r} where the magic is expected{guess}", offset=0
        )
    if len(head) < MIN_FRAME_LEN:
        raise FrameFormatError(
            ("the file is cut off" if head else "the file is empty")
            + f": it has {len(head)} bytes, the shortest frame has {MIN_FRAME_LEN}",
            offset=len(head),
        )
    header_len, frame_len = _lengths(head)
    if not MIN_HEADER_LEN <= header_len <= min(frame_len, MAX_HEADER_LEN):
        raise FrameFormatError(
            f"a header of {header_len} bytes does not fit a frame of {frame_len}", offset=11
        )
    return header_len


def parse_header(buf: bytes, available: int) -> FrameHeader:
    """Parse and check the header.

    `buf` has at least the frame's first `header_len_of(...)` bytes; `available` is the number of
    bytes from the frame's start to the end of its file. Raises `FrameFormatError` for fields that
    contradict the format, each other, or the file's size, `UnsupportedFrameError` for a version or
    kind of frame that this package does not read.
    """
    header_len, frame_len = _lengths(buf)
    if len(buf) < header_len:
        raise FrameFormatError(
            f"the file ends inside the header of {header_len} bytes", offset=len(buf)
        )
    if frame_len > available:
        raise FrameFormatError(
            f"the file is cut off: it has {available} bytes, the frame {frame_len}", offset=16
        )
    for at, marker in zip(_MARKED, _MARKERS, strict=True):
        if buf[at] != marker:
            raise FrameFormatError(f"0x{buf[at]:02x} where 0x{marker:02x} is expected", offset=at)
    _, _, _, flags, kind, *fields = _FIXED.unpack_from(buf)
    level_and_codec, splitmode, nbytes, cbytes, typesize, blocksize, chunksize, *rest = fields
    _, _, _, slots, filters, codec, codec_meta, filters_meta, use_dict = rest
    _check_kind(flags, kind, slots, has_chunks=bool(chunksize or nbytes))
    if min(nbytes, cbytes, blocksize, chunksize) < 0 or typesize < 1:
        raise FrameFormatError("a negative size in the header", offset=29)
    compression = Compression(
        # the nibble is the codec's API id, not its format code as the original text says
        # (docs/format.md, Frame header)
        codec=codec if level_and_codec & 0x0F == _PLUGIN_CODEC else level_and_codec & 0x0F,
        codec_meta=codec_meta,
        clevel=level_and_codec >> 4,
        splitmode=(splitmode & 0x03) + 1,
        filters=tuple(filters),
        filters_meta=tuple(filters_meta),
        use_dict=bool(use_dict & 0x01),
    )
    return FrameHeader(
        header_len=header_len,
        frame_len=frame_len,
        sparse=kind == 1,
        nbytes=nbytes,
        cbytes=cbytes,
        typesize=typesize,
        blocksize=blocksize,
        chunksize=chunksize,
        compression=compression,
        metalayers=parse_metalayers(buf, FIXED_LEN + 1, header_len),
    )


def geometry_of(header: FrameHeader) -> tuple[Grid, np.dtype[Any] | None]:
    """Parse the geometry of the array, and check the sizes in the header against it."""
    meta: ArrayMeta = array_meta_of(header.metalayers)
    dtype, itemsize = meta.dtype, _itemsize(header, meta)
    axes: tuple[int, ...] = ()
    if dtype is not None and dtype.subdtype is not None:
        # as in python-blosc2, an array of shape (5,) with elements ('<f8', (10,)) has the shape
        # (5, 10); neither chunks nor blocks divide the last axis
        dtype, axes = dtype.subdtype
        itemsize = dtype.itemsize
    grid = Grid(meta.shape + axes, meta.chunks + axes, meta.blocks + axes, itemsize)
    if grid.ndim > MAX_NDIM:
        raise UnsupportedFrameError(f"an array of {grid.ndim} axes; the maximum is {MAX_NDIM}")
    compression = header.compression
    is_plain = name_of_array(header.metalayers) == "b2nd" and not axes
    if compression.needs_shape and not is_plain:
        raise UnsupportedFrameError(
            f"codec {compression.codec} with filters {compression.filters} needs the array's "
            "shape, which frames of Caterva or with elements that are arrays do not provide"
        )
    if grid.itemsize > MAX_ITEMSIZE:
        raise FrameFormatError(
            f"elements of {grid.itemsize} bytes; the maximum is {MAX_ITEMSIZE}",
            offset=48,
        )
    # NumPy multiplies the lengths of the other axes even if one is 0
    extent = math.prod(max(n, 1) for n in grid.shape) * grid.itemsize
    if (
        max(grid.nchunks - MAX_CHUNKS, grid.chunk_nbytes - MAX_CHUNK_NBYTES, extent - MAX_NBYTES)
        > 0
    ):
        raise FrameFormatError(
            f"shape {grid.shape} in chunks of {grid.chunks} elements of {grid.itemsize} bytes "
            "exceeds the limits of the format"
        )
    _check_sizes(header, grid)
    return grid, dtype


def _itemsize(header: FrameHeader, meta: ArrayMeta) -> int:
    """Bytes of an element; raise FrameFormatError if header and dtype differ."""
    if meta.dtype is None:
        return header.typesize
    itemsize = meta.dtype.itemsize
    # chunks of wider elements have typesize 1. In memory python-blosc2 writes the 1 into the frame
    # header, too, and cannot read the frame; then the sizes of chunks and blocks confirm the dtype
    wide = header.typesize == 1 and itemsize > MAX_TYPESIZE
    if itemsize != header.typesize and not wide:
        raise FrameFormatError(
            f"elements of dtype {meta.dtype} have {itemsize} bytes, "
            f"but the header's typesize is {header.typesize}",
            offset=48,
        )
    return itemsize


def _check_sizes(header: FrameHeader, grid: Grid) -> None:
    """Check the sizes in the header against those of the grid."""
    sizes = {"nbytes": (header.nbytes, grid.nchunks * grid.chunk_nbytes)}
    if grid.nchunks:
        # empty arrays store nothing; any chunk size is valid, even 0 (docs/format.md, Geometry)
        sizes["blocksize"] = header.blocksize, grid.block_nbytes
        sizes["chunksize"] = header.chunksize, grid.chunk_nbytes
    for name, (in_header, computed) in sizes.items():
        if in_header != computed:
            raise FrameFormatError(
                f"the header's {name} is {in_header}, but shape {grid.shape}, chunks {grid.chunks} "
                f"and blocks {grid.blocks} of {grid.itemsize} bytes make {computed}"
            )


def build_header(header: FrameHeader, *, has_vlmeta: bool) -> bytes:
    """Build the header; compute its `header_len`, whatever that of the argument is.

    `has_vlmeta` says whether the trailer has vlmetalayers.
    """
    metalayers = build_metalayers(dict(header.metalayers), FIXED_LEN, counted_from=FIXED_LEN)
    compression = header.compression
    level_and_codec = compression.clevel << 4 | min(compression.codec, _PLUGIN_CODEC)
    fixed = _FIXED.pack(
        MAGIC, FIXED_LEN + len(metalayers), header.frame_len,
        # version 2, 64-bit offsets; version 3 and the flag of variable chunks if chunks are empty
        0x12 if header.chunksize else 0x13 | _VARIABLE_CHUNKS,
        header.sparse, level_and_codec, compression.splitmode - 1,
        header.nbytes, header.cbytes, header.typesize, header.blocksize, header.chunksize,
        # one thread each for compression and decompression: python-blosc2 uses its own setting
        1, 1, 0xC3 if has_vlmeta else 0xC2,
        _FILTER_SLOTS, bytes(compression.filters), compression.codec, compression.codec_meta,
        bytes(compression.filters_meta), compression.use_dict,
    )  # fmt: skip
    out = bytearray(fixed + metalayers)
    for at, marker in zip(_MARKED, _MARKERS, strict=True):
        out[at] = marker
    return bytes(out)


def odd_byte(head: bytes, header: FrameHeader, *, has_vlmeta: bool) -> int | None:
    """Find the first byte of a header that no current writer writes; None if there is none.

    C-Blosc2 ignores some of the bytes, but it rewrites the whole header at every change. So a
    different byte means damage. Compression parameters may have any value.
    """
    usual = bytearray(build_header(header, has_vlmeta=has_vlmeta))
    for free in _FREE:
        usual[free] = head[free]
    if usual == head:
        return None
    both = zip(usual, head, strict=False)
    return next((at for at, (a, b) in enumerate(both) if a != b), min(len(usual), len(head)))


def with_new_tail(head: bytes, *, cbytes: int, frame_len: int, has_vlmeta: bool = True) -> bytes:
    """Update a whole header for an index and a trailer at new positions.

    Only the fields of the arguments change; `cbytes` is the number of bytes of the data region.
    """
    out = bytearray(head)
    struct.pack_into(">Q", out, 16, frame_len)
    struct.pack_into(">q", out, 39, cbytes)
    out[68] = 0xC3 if has_vlmeta else 0xC2
    return bytes(out)


def _lengths(buf: bytes) -> tuple[int, int]:
    header_len, frame_len = struct.unpack_from(">ixQ", buf, 11)
    return header_len, frame_len


def _check_kind(flags: int, kind: int, slots: int, *, has_chunks: bool) -> None:
    version, offsets = flags & 0x0F, flags >> 4 & 0x03
    if version > 3:
        raise UnsupportedFrameError(f"frame format version {version}, known are 0 to 3", offset=25)
    if offsets != _OFFSETS_64:
        raise FrameFormatError(f"offset width code {offsets}, only 1 (64 bit) exists", offset=25)
    if flags & _VL_BLOCKS:
        raise UnsupportedFrameError("a frame of variable-length blocks holds no array", offset=25)
    if kind > 1:
        raise FrameFormatError(f"frame type {kind}: neither contiguous nor sparse", offset=26)
    if slots > _FILTER_SLOTS:
        raise FrameFormatError(f"{slots} filter slots, the format has {_FILTER_SLOTS}", offset=70)
    if flags & _VARIABLE_CHUNKS and has_chunks:
        raise UnsupportedFrameError("a frame of variable-size chunks holds no array", offset=25)
