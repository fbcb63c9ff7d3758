"""Frames inside an embed store (``.b2e``, and ``embed.b2e`` in other stores of python-blosc2).

The store itself is a frame of bytes without a shape. Its elements are the bytes of the members, one
after the other; an entry of its vlmeta has the offset of each (docs/format.md, Stores). So a reader
of the elements is a `ByteReader` with frames at offsets. A read decodes only the bytes it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from b2nd_dask.errors import CorruptChunkError, FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.chunk.chunk_header import ChunkKind, longest_chunk
from b2nd_dask.format.header import FrameHeader
from b2nd_dask.format.index import OffsetIndex
from b2nd_dask.format.metalayers import MAX_CHUNKS
from b2nd_dask.format.values import most_unpacked, unpack_entry, unpack_value
from b2nd_dask.frame.open.opening import read_header, read_tail
from b2nd_dask.storage import ByteReader, Identity, Location, OffsetReader, Span, printable

#: Largest chunk of a store, since each small read decodes a whole chunk; in practice it has 8 KiB.
MAX_CHUNK_NBYTES = 1 << 26
#: Most bytes of elements to read at once.
_BATCH_NBYTES = 1 << 24
#: Number of lists of stores that a process caches.
_KEPT = 8
_Parsed = TypeVar("_Parsed")

_lists: dict[tuple[str, Identity], Any] = {}


def parsed_once(
    location: Location, reader: ByteReader, parse: Callable[[ByteReader], _Parsed]
) -> _Parsed:
    """Parse the list of a store, or return the cached list of this version.

    The list may be long, and is needed for each member. `location` is that of the store or of a
    member; `reader` is its opened reader.
    """
    if not reader.identity_is_cheap:
        # the identity may be weaker than the list
        return parse(reader)
    key = (replace(location, member="", embedded=False).key, reader.opened_identity())
    found: _Parsed | None = _lists.get(key)
    if found is None:
        found = _lists[key] = parse(reader)
        # `list` and `pop` are atomic; a fork might leave a lock locked
        for old in list(_lists)[:-_KEPT]:
            _lists.pop(old, None)
    return found


class EmbedStore(OffsetReader):
    """An opened embed store, which reads byte ranges of its elements as a `ByteReader`."""

    # spans count decoded bytes, which the outer reader does not have
    read_each, item = ByteReader.read_each, ByteReader.item

    def __init__(self, reader: ByteReader, location: Location) -> None:
        """Read the metadata of a store that is opened at a location, or use the cached list.

        Raises `FrameFormatError` or `CorruptChunkError` if it is not a frame, or it is damaged,
        `UnsupportedFrameError` if the frame is not an embed store.
        """
        with locating(path=reader.label):
            self._header, self._index, self.entries = parsed_once(location, reader, _read_list)
        super().__init__(reader, 0, self._header.nbytes, reader.label)
        self.location = location
        self.max_gap = max(reader.max_gap, self._header.chunksize)

    def frame_of(self, key: str, label: str) -> OffsetReader:
        """Create a reader of the frame of a member; raises as `range_of`."""
        return OffsetReader(self, *self.range_of(key), label)

    def range_of(self, key: str) -> tuple[int, int]:
        """Find first byte and length of a member.

        Raises `FileNotFoundError` if the key does not exist (any more), `UnsupportedFrameError` if
        the member is not in the store, but at another address, `FrameFormatError` if it lies
        outside the store.
        """
        if key not in self.entries:
            raise FileNotFoundError(f"{self.label}: no member {printable(key)} in this store")
        entry = self.entries[key]
        values = entry if isinstance(entry, dict) else {}
        if "urlbase" in values:
            raise UnsupportedFrameError(
                f"{printable(key)} is a C2Array, the address of an array on a server; open it with "
                "python-blosc2",
                path=self.label,
            )
        offset, length = values.get("offset"), values.get("length")
        if type(offset) is not int or type(length) is not int:
            problem = f"the store has no offset and length of {printable(key)}"
            raise FrameFormatError(problem, path=self.label)
        if not 0 <= offset < offset + length <= self._header.nbytes:
            raise FrameFormatError(
                f"{printable(key)} is at bytes {offset} to {offset + length} of the store, which "
                f"has {self._header.nbytes}",
                path=self.label,
            )
        return offset, length

    def read(self, spans: Sequence[Span], member: str = "") -> list[bytes]:
        """Decode ranges of elements that must exist; see `ByteReader.read`."""
        self.require_no_member(member)
        return [self._range(start, stop) if start < stop else b"" for start, stop in spans]

    def _inside(self, outer: Identity) -> Identity:
        # includes the state of the whole store, in which the member of a key may change
        return Identity(self._header.nbytes, f"{outer.size}-{outer.token}", outer.changed)

    def _range(self, start: int, stop: int) -> bytes:
        size = self._header.chunksize
        parts = []
        step = max(1, _BATCH_NBYTES // size)
        last = -(-stop // size)
        for first in range(start // size, last, step):
            chunks = np.arange(first, min(first + step, last))
            decoded = b"".join(self._decoded(chunks))
            at = first * size
            parts.append(decoded[max(0, start - at) : stop - at])
        return b"".join(parts)

    def _decoded(self, chunks: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[bytes]:
        header = self._header
        stored = chunks[self._index.kinds[chunks] == ChunkKind.STORED]
        starts, stops = self._index.extents(stored)
        # a hole of the file may lie behind a chunk
        longest = longest_chunk(header.chunksize, header.blocksize or header.chunksize)
        columns = starts, np.minimum(stops, starts + longest)
        begins, ends = ((each + header.header_len).tolist() for each in columns)
        data = self._reader.read(list(map(Span, begins, ends)))
        found = dict(zip(stored.tolist(), data, strict=True))
        for number in chunks.tolist():
            nbytes = min(header.chunksize, header.nbytes - number * header.chunksize)
            if number not in found:
                yield bytes(nbytes)
                continue
            with locating(path=self.label, chunk=number):
                decoded = unpack_entry(found[number], nbytes)
                if len(decoded) < nbytes:
                    raise CorruptChunkError(f"it has {len(decoded)} bytes, expected {nbytes}")
            yield decoded


def open_reader(location: Location) -> ByteReader:
    """Open the reader of a frame, also of a member of an embed store."""
    reader = location.open()
    if not location.embedded:
        return reader
    try:
        return EmbedStore(reader, location).frame_of(location.member, location.label)
    except BaseException:
        reader.close()
        raise


def _read_list(reader: ByteReader) -> tuple[FrameHeader, OffsetIndex, Mapping[str, Any]]:
    """Read header and index of a store, and its entry for each member."""
    head, header = read_header(reader, reader.opened_identity().size)
    tail = read_tail(reader, head, header, _count_chunks(header))
    entries: Any = {}
    if (raw := tail.vlmeta.get("estore_metadata")) is not None:
        found = unpack_value(unpack_entry(raw, most_unpacked(raw)))
        entries = found.get("embed_map") if isinstance(found, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(key, str) for key in entries):
        raise FrameFormatError("the list of members in the store is damaged")
    return header, tail.offsets, entries


def _count_chunks(header: FrameHeader) -> int:
    """Check that a frame is a store, and count its chunks."""
    if not {"b2embed", "b2dict", "b2tree"} & header.metalayers.keys():
        raise UnsupportedFrameError("this frame is not a store, and has no members")
    if header.sparse:
        raise UnsupportedFrameError("an embed store in a sparse frame is not supported")
    if not header.nbytes:
        return 0
    if not 0 < header.chunksize <= MAX_CHUNK_NBYTES:
        raise UnsupportedFrameError(
            f"an embed store in chunks of {header.chunksize} bytes; the maximum is "
            f"{MAX_CHUNK_NBYTES}"
        )
    nchunks = -(-header.nbytes // header.chunksize)
    if nchunks > MAX_CHUNKS:
        raise FrameFormatError(f"an embed store of {header.nbytes} bytes is too large", offset=30)
    return nchunks
