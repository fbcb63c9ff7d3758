"""Metadata values: msgpack to Python objects, with size limits; no code is executed."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.lib.format import drop_metadata

from b2nd_dask.errors import CorruptChunkError, FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.chunk.chunk_header import parse_chunk_header
from b2nd_dask.format.chunk.codec import decode_chunk, encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.dtypes import dtype_of_descr, parse_dtype
from b2nd_dask.format.metalayers import MAX_NAME
from b2nd_dask.lazy import lazy

#: Most values in a metadata entry, including those in containers. A value takes one byte in the
#: file and up to a hundred in memory.
MAX_ITEMS = 1 << 20
#: A set or an array counts as this many plain values, since it takes more memory and time.
EXTENSION_ITEMS = 16
#: Most members of a set, or keys of a map, with the same hash. At most this many 64-bit numbers
#: share a hash; in CPython a set of n members with equal hashes takes n * n steps.
MAX_EQUAL_HASHES = 64

#: First bytes of arrays, maps and extension values in msgpack.
_ARRAYS = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
_EXTENSIONS = frozenset([0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)])
#: An entry of vlmeta may always unpack to this many bytes ...
FREE_NBYTES = 64 << 20
#: ... and more only up to this multiple of its compressed size; bombs shrink 1,000 times and more.
MAX_RATIO = 64
#: Upstream's compression of vlmeta (docs/format.md, Metadata values).
_VLMETA_COMPRESSION = Compression(codec=5, clevel=5, filters=(0, 0, 0, 0, 0, 1))
#: A level of msgpack's decoder takes 40 kB of the C stack; some 200 levels would overflow it.
MAX_EXTENSION_DEPTH = 8
#: The limit of NumPy.
_MAX_ARRAY_NDIM = 64
#: Extension types of python-blosc2 (docs/format.md, Metadata values).
_CFRAME, _REFERENCE, _COMPLEX, _SET, _NDARRAY = 42, 43, 44, 45, 46


class _Unpacker:
    """Unpacks a metadata entry and the extension values in it, within the limits for both."""

    def __init__(self) -> None:
        self._left = MAX_ITEMS
        self._depth = 0

    def unpack(self, raw: bytes) -> Any:
        """Convert one msgpack value: that of the entry, or the content of an extension value."""
        self._spend(raw)
        self._depth += 1
        try:
            value = msgpack.unpackb(
                raw,
                strict_map_key=False,
                list_hook=_untuple,
                object_pairs_hook=_map_of,
                ext_hook=self._unpack_extension,
            )
        except (FrameFormatError, UnsupportedFrameError):
            raise
        # msgpack's own errors are ValueErrors; a list as a map key is a TypeError
        except (ValueError, TypeError, RecursionError) as error:
            problem = str(error) or type(error).__name__
            raise FrameFormatError(f"it is not a msgpack value: {problem}") from error
        self._depth -= 1
        return value

    def _unpack_extension(self, code: int, data: bytes) -> Any:
        if self._depth > MAX_EXTENSION_DEPTH:
            raise FrameFormatError(f"it nests more than {MAX_EXTENSION_DEPTH} extension values")
        if code == _COMPLEX and len(data) == 16:
            return complex(*struct.unpack(">dd", data))
        if code == _SET:
            members = self.unpack(data)
            if not isinstance(members, list | tuple):
                raise FrameFormatError("it holds a set that is not a list of members")
            try:
                require_few_collisions(members)
                return set(members)
            except TypeError as error:
                problem = "it holds a set with an array (such as a time of NumPy) or a list in it"
                raise FrameFormatError(problem) from error
        if code == _NDARRAY:
            return _unpack_array(self.unpack(data))
        if code in (_CFRAME, _REFERENCE):
            raise UnsupportedFrameError(
                "it holds a python-blosc2 object or a reference to one, which is not followed"
            )
        raise UnsupportedFrameError(f"it holds a msgpack extension of unknown type {code}")

    def _spend(self, raw: bytes) -> None:
        """Subtract the number of values in a msgpack value, without those in extension values.

        Raises `FrameFormatError` if there are too many values, or fewer than the arrays and maps
        announce: decoders allocate memory for the announced number.
        """
        waiting, left, pos = 1, self._left, 0
        reader = msgpack.Unpacker(max_buffer_size=0)
        reader.feed(raw)
        try:
            while 0 < waiting <= left:
                first = raw[pos]
                waiting -= 1
                left -= EXTENSION_ITEMS if first in _EXTENSIONS else 1
                if first in _ARRAYS:
                    waiting += reader.read_array_header()
                elif first in _MAPS:
                    waiting += 2 * reader.read_map_header()
                else:
                    reader.skip()
                pos = reader.tell()
        except (IndexError, msgpack.OutOfData) as error:
            raise FrameFormatError("it is not a msgpack value: it ends too early") from error
        except ValueError as error:
            # msgpack's compiled reader gives no reason for 0xc1, the only invalid byte
            problem = str(error) or "0xc1 starts none"
            raise FrameFormatError(f"it is not a msgpack value: {problem}") from error
        if waiting > left:
            raise FrameFormatError(
                f"it holds more than {MAX_ITEMS} values, which should be an array; "
                "`raw(name)` returns its bytes"
            )
        if pos != len(raw):
            raise FrameFormatError(
                f"it is not a msgpack value: it should have {pos} bytes, not {len(raw)}"
            )
        self._left = left


def require_few_collisions(members: Sequence[object]) -> None:
    """Check that the members of a set or map were not chosen for equal hashes.

    Raises `FrameFormatError` if more than `MAX_EQUAL_HASHES` have the same hash, `TypeError` if a
    member has no hash.
    """
    if len(members) <= MAX_EQUAL_HASHES:
        return
    counts = Counter(map(hash, members))
    if max(counts.values(), default=0) > MAX_EQUAL_HASHES:
        raise FrameFormatError("members of a set or map share one hash, as in an attack")


class MetaView(Mapping[str, Any]):
    """Metadata entries of a frame as Python objects, each decoded on access.

    `path` names the frame in messages. If `compressed`, each entry is a compressed chunk (vlmeta),
    else plain msgpack (fixed metalayers).
    """

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "meta_html")

    def __init__(self, entries: Mapping[str, bytes], path: str, *, compressed: bool) -> None:
        self._entries = entries
        self._path = path
        self._compressed = compressed

    def __getitem__(self, name: str) -> Any:
        with locating(path=self._path, part=f"the metadata entry {name!r}"):
            return unpack_value(self.raw(name))

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without decoding: the value may be long or damaged

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self)) or 'nothing'}>"

    def nbytes_of(self, name: str) -> int:
        """Read the unpacked size of an entry in bytes, without unpacking it; raises as `raw`."""
        entry = self._entries[name]
        return parse_chunk_header(entry).nbytes if self._compressed else len(entry)

    @property
    def stored(self) -> Mapping[str, bytes]:
        """The entries as stored, for copies into another frame."""
        return self._entries

    def raw(self, name: str) -> bytes:
        """Decompress an entry; it may be no msgpack if another program wrote it.

        Raises `KeyError` if it does not exist, `CorruptChunkError` if its chunk is damaged, or
        exceeds the size limit.
        """
        entry = self._entries[name]
        return unpack_entry(entry, most_unpacked(entry)) if self._compressed else entry


def most_unpacked(entry: bytes) -> int:
    """Compute the largest size that an entry of vlmeta may unpack to."""
    return max(FREE_NBYTES, MAX_RATIO * len(entry))


def unpack_entry(entry: bytes, most: int) -> bytes:
    """Decompress an entry of vlmeta to at most `most` bytes.

    Raises `CorruptChunkError` if its chunk is damaged, or would unpack to more bytes.
    """
    header = parse_chunk_header(entry)
    if header.nbytes > most:
        raise CorruptChunkError(
            f"its {len(entry)} bytes unpack to {header.nbytes}, the maximum is {most}"
        )
    if header.needs_shape:
        raise CorruptChunkError("its codec or filters are for arrays, not for metadata")
    out = np.zeros(header.nbytes, np.uint8)
    if header.nbytes:
        decode_chunk(entry, header, out)
    return out.tobytes()


def unpack_value(raw: bytes) -> Any:
    """Convert a msgpack value to a plain type, tuple, set, complex number or NumPy array.

    Raises `FrameFormatError` unless the bytes are exactly one msgpack value within the limits,
    `UnsupportedFrameError` for a reference to another file, or an unknown extension type.

    Examples
    --------
    >>> unpack_value(msgpack.packb({"t": ["__tuple__", 1, 2]}))
    {'t': (1, 2)}
    """
    return _Unpacker().unpack(raw)


def pack_metadata(entries: Mapping[str, Any], *, compressed: bool) -> dict[str, bytes]:
    """Pack the user's metadata entries for a new frame.

    Values have the types that `unpack_value` returns, or are NumPy scalars. If `compressed`, each
    becomes a compressed chunk (vlmeta), else plain msgpack (fixed metalayers). Raises `ValueError`
    if a name is too long, `TypeError` if msgpack cannot hold a value.
    """
    if not isinstance(entries, Mapping):
        raise TypeError(
            f"metadata must be a mapping of names to values, not {type(entries).__name__}"
        )
    packed = {}
    for name, value in entries.items():
        if not isinstance(name, str):
            raise TypeError(f"metadata names must be text; {name!r} is {type(name).__name__}")
        if not 0 < len(name.encode("utf-8")) <= MAX_NAME:
            raise ValueError(f"metadata name {name!r}: names have 1 to {MAX_NAME} bytes of UTF-8")
        try:
            raw = pack_value(value)
            # raises if readers could not unpack it
            unpack_value(raw)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"the metadata entry {name!r} cannot be stored: {error}") from error
        try:
            # python-blosc2 reads only such keys, as msgpack does by default
            msgpack.unpackb(raw)
        except ValueError as error:
            raise TypeError(f"the metadata entry {name!r}: keys must be text or bytes") from error
        packed[name] = pack_entry(raw) if compressed else raw
        if compressed and len(raw) > most_unpacked(packed[name]):
            raise ValueError(
                f"the metadata entry {name!r} packs {len(raw)} bytes into {len(packed[name])}, "
                "which readers reject as an attack; store such data as an array"
            )
    return packed


def pack_value(value: Any) -> bytes:
    """Convert a metadata value to msgpack, with python-blosc2's conventions.

    Examples
    --------
    >>> unpack_value(pack_value({"t": (1, 2j), "a": np.arange(3)}))
    {'t': (1, 2j), 'a': array([0, 1, 2])}
    """
    packed: bytes = msgpack.packb(value, default=_pack_extension, strict_types=True)
    return packed


def pack_entry(
    raw: bytes, compression: Compression = _VLMETA_COMPRESSION, typesize: int = 1
) -> bytes:
    """Compress an entry of vlmeta, by default like upstream."""
    return encode_chunk(np.frombuffer(raw, np.uint8), compression, typesize=typesize, blocksize=0)


def _pack_extension(value: Any) -> Any:
    """Convert other types to python-blosc2's extension values (docs/format.md, Metadata values)."""
    if isinstance(value, tuple):
        return ["__tuple__", *value]
    if isinstance(value, complex | np.complex64):
        return msgpack.ExtType(_COMPLEX, struct.pack(">dd", value.real, value.imag))
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":  # times keep their unit
        return value.item()
    if isinstance(value, set | frozenset):
        return msgpack.ExtType(_SET, pack_value(list(value)))
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        dtype = drop_metadata(value.dtype)
        kind = {"str": dtype.str} if dtype.fields is None else {"descr": dtype.descr}
        payload = {"dtype": kind, "shape": list(value.shape), "data": value.tobytes()}
        return msgpack.ExtType(_NDARRAY, pack_value(payload))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a type of metadata")


def _untuple(items: list[Any]) -> Any:
    # the tuple marker of python-blosc2
    if items and isinstance(items[0], str) and items[0] == "__tuple__":
        return tuple(items[1:])
    return items


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    require_few_collisions([key for key, _ in pairs])
    return dict(pairs)


def _unpack_array(value: Any) -> np.ndarray[Any, Any]:
    """Build the NumPy array of an ext 46 payload: a map of dtype, shape and data."""
    if not isinstance(value, dict) or not isinstance(value.get("data"), bytes):
        raise UnsupportedFrameError("it holds an array of Python objects")
    shape, kind = value.get("shape"), value.get("dtype")
    if (
        not isinstance(kind, dict)
        or not isinstance(shape, list)
        or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
        or len(shape) > _MAX_ARRAY_NDIM
    ):
        raise FrameFormatError("it holds an array without a dtype or a shape")
    if (text := kind.get("str")) is None:
        dtype = dtype_of_descr(kind.get("descr"))
    else:
        dtype = parse_dtype(str(text).encode("utf-8", "replace"))
    # NumPy multiplies the lengths of the other axes even if one is 0
    extent = math.prod(max(n, 1) for n in shape) * dtype.itemsize
    if math.prod(shape) * dtype.itemsize != len(value["data"]) or extent >= 1 << 63:
        problem = f"it holds {len(value['data'])} bytes for an array of {shape} {dtype}"
        raise FrameFormatError(problem)
    return np.frombuffer(value["data"], dtype).reshape((*shape, *dtype.shape))
