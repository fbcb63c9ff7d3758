"""Functions that damage a frame."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import blosc2
import msgpack
import numpy as np
import xxhash

from tests.fuzz.layout import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.fuzz.files import Files

NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 96, 112, 127, 128, 129, 160, 192),
    *(224, 240, 254, 255, 256, 4095, 65535, 65536, 2**24, 2**28, 2**31 - 33, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1),
)
SOUND_ARRAY = msgpack.ExtType(
    46, msgpack.packb({"dtype": {"str": "<i8"}, "shape": [2], "data": bytes(16)})
)
PLUGINS = (32, 33, 34, 35, 36, 37, 38, 160)
FILTERS = (1, 2, 3, 4, 32, 33, 35, 36, 160)
DTYPES = (
    *("<f8", "|V0", "S", "<U0", "<M8[0s]", "<M8[ns]", "O", "T", "a4", "i", "?", "float64", "|V8"),
    *("V999999999", "[('a', '<i4')]", "[('a', '<i4', (2**9,))]", "[('a', '<i4', (65536, 65536))]"),
    *("[" * 900, "[('a', 'V0')]", "dtype('<f4')", "__import__('os')", "<f8,<f8", "(2,)f4", ""),
    *("[('a', '<i4'), ('a', '<i4')]", "[('', '|O')]", "<c16", "m8[25us]", "[('a', [('b', 'S0')])]"),
)


def flip(files: Files, layout: Layout, rng: Random) -> None:
    """Change single bytes, mostly in structural fields."""
    name = rng.choice(list(files))
    data = bytearray(files[name])
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if data:
            parts = [len(data), len(data), layout.header_len, 32]
            at = rng.randrange(min(rng.choice(parts), len(data)))
            data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
    files[name] = bytes(data)


def number(files: Files, layout: Layout, rng: Random) -> None:
    """Replace a field by a boundary value or a nearby one."""
    file, start, width = rng.choice(layout.fields)
    data = bytearray(files.get(file, b""))
    if start + width > len(data):
        return
    order = rng.choice(("big", "little"))
    old = int.from_bytes(data[start : start + width], order)
    near = old + rng.choice((-8, -4, -1, 1, 4, 8, 32, old, -old // 2))
    value = rng.choice((*NUMBERS, near, near, near)) % (1 << 8 * width)
    data[start : start + width] = value.to_bytes(width, order)
    files[file] = bytes(data)


def cut(files: Files, layout: Layout, rng: Random) -> None:
    """Truncate a file, or append bytes."""
    name = rng.choice(list(files))
    data = files[name]
    edges = [layout.header_len, layout.index_start, layout.trailer_start, layout.frame_len, 112]
    at = rng.choice((*edges, rng.randrange(len(data) + 1))) + rng.choice((-1, 0, 0, 1))
    files[name] = data[: max(at, 0)] if rng.random() < 0.8 else data + data[:at]


def splice(files: Files, layout: Layout, rng: Random) -> None:
    """Copy, insert or remove a range."""
    name = rng.choice(list(files))
    data, source = files[name], files[rng.choice(list(files))]
    length = rng.choice((1, 4, 8, 32, 64, 200))
    start, at = rng.randrange(len(source) + 1), rng.randrange(len(data) + 1)
    piece = source[start : start + length]
    replaced = rng.choice((len(piece), len(piece), 0, length))
    files[name] = data[:at] + piece + data[at + replaced :]


def members(files: Files, layout: Layout, rng: Random) -> None:
    """Swap, remove or empty a chunk file."""
    names = [name for name in files if name != layout.main]
    if not names:
        return number(files, layout, rng)
    one, other = rng.choice(names), rng.choice(names)
    how = rng.randrange(4)
    if how == 0:
        files[one], files[other] = files[other], files[one]
    elif how == 1:
        del files[one]
    elif how == 2:
        files[one] = b""
    else:
        files[f"{rng.choice(NUMBERS):08X}.chunk"] = files.pop(one)
    return None


def streams(files: Files, layout: Layout, rng: Random) -> None:
    """Damage a chunk after its header: block offsets, stream lengths, streams."""
    if not layout.chunks:
        return
    name, start = rng.choice(layout.chunks)
    data = bytearray(files.get(name, b""))
    at = start + 32 + 4 * rng.randrange(40)
    if at + 4 <= len(data):
        (old,) = struct.unpack_from("<i", data, at)
        value = rng.choice((old + rng.choice((-4, -1, 1, 4, 300)), *NUMBERS, -rng.randrange(300)))
        struct.pack_into("<I", data, at, value % 2**32)
    files[name] = bytes(data)


def payload(files: Files, layout: Layout, rng: Random) -> None:
    """Change bytes anywhere after a chunk's header."""
    if not layout.chunks:
        return
    name, start = rng.choice(layout.chunks)
    data = bytearray(files.get(name, b""))
    (length,) = struct.unpack_from("<i", data, start + 12) if len(data) >= start + 32 else (0,)
    stop = min(start + length, len(data))
    for _ in range(rng.choice((1, 2, 8, 40))):
        if start + 32 < stop:
            data[rng.randrange(start + 32, stop)] = rng.choice(
                (0, 1, 0x7F, 0xFF, rng.randrange(256))
            )
    files[name] = bytes(data)


def pipeline(files: Files, layout: Layout, rng: Random) -> None:
    """Give a chunk another codec or other filters in its header."""
    if not layout.chunks:
        return
    name, start = rng.choice(layout.chunks)
    data = bytearray(files.get(name, b""))
    if len(data) < start + 32:
        return
    if rng.random() < 0.6:
        codec, plugin = rng.choice(((0, 0), (1, 0), (3, 0), (4, 0), *((6, n) for n in PLUGINS)))
        data[start + 2] = data[start + 2] & 0x1F | codec << 5
        data[start + 22], data[start + 23] = plugin, rng.choice((0, 1, 4, 8, 20, 50, 100, 255))
    if rng.random() < 0.6:
        slots = [rng.choice((0, 0, 0, *FILTERS)) for _ in range(6)]
        data[start + 16 : start + 22] = bytes(slots)
        data[start + 24 : start + 30] = bytes(rng.choice((0, 1, 3, 4, 8, 255)) for _ in range(6))
        data[start + 2] = data[start + 2] & ~0x08 | (0x08 if 3 in slots else 0)
    if rng.random() < 0.2:
        data[start + 2] ^= rng.choice((0x02, 0x10))
    if rng.random() < 0.2:
        data[start + 31] ^= 0x01
    files[name] = bytes(data)


def replaced_tail(files: Files, layout: Layout, index: bytes, trailer: bytes) -> None:
    """Replace index and trailer, with consistent lengths."""
    frame = files[layout.main]
    tail = trailer[:-22] + struct.pack(">I", len(trailer)) + trailer[-18:]
    whole = bytearray(frame[: layout.index_start] + index + tail)
    if len(whole) >= 24:
        struct.pack_into(">Q", whole, 16, len(whole))
    files[layout.main] = bytes(whole)


def offsets(files: Files, layout: Layout, rng: Random) -> None:
    """Replace entries of the index, and compress it again."""
    frame = files[layout.main]
    entries = np.array(layout.offsets, "<i8")
    if not len(entries):
        return
    for _ in range(rng.choice((1, 1, 3))):
        if len(entries):
            codes = [(0x80 | kind) << 56 for kind in (0, 1, 2, 3, 4, 5, 6, 7, 0x7F)]
            value = rng.choice(
                (*NUMBERS, *codes, *codes, int(entries[rng.randrange(len(entries))]))
            )
            entries.view("<u8")[rng.randrange(len(entries))] = value % 2**64
    if rng.random() < 0.2:
        entries = np.append(entries, entries)[: rng.randrange(1, 2 * len(entries) + 1)]
    codec = rng.choice((blosc2.Codec.BLOSCLZ, blosc2.Codec.ZSTD))
    packed = blosc2.compress2(entries, typesize=8, codec=codec, clevel=rng.choice((0, 1, 9)))
    replaced_tail(files, layout, packed, frame[layout.trailer_start :])


def any_value(rng: Random, depth: int = 0) -> object:
    """Make a metadata value, often an odd one."""
    kind = rng.randrange(12 if depth < 4 else 6)
    if kind < 6:
        plain = (None, True, rng.choice(NUMBERS), 1.5, "text", b"\0" * rng.randrange(20))
        return plain[kind] if kind != 2 else min(plain[2], 2**64 - 1)
    items = [any_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return rng.choice((items, ["__tuple__", *items]))
    if kind == 7:
        return {f"k{i}": item for i, item in enumerate(items)}
    if kind == 8:
        code = rng.choice((0, 1, 42, 43, 44, 45, 46, 47))
        if rng.random() < 0.1:
            return msgpack.Timestamp(rng.randrange(2**40), rng.randrange(10**9))
        return msgpack.ExtType(code, bytes(rng.choice((0, 1, 4, 8, 12, 16))))
    if kind == 9:
        return msgpack.ExtType(45, msgpack.packb(rng.choice((items, 3, {"a": 1}))))
    if rng.random() < 0.3:
        return SOUND_ARRAY
    dtype = rng.choice(({"str": rng.choice(DTYPES)}, {"descr": [["a", rng.choice(DTYPES)]]}, 3))
    shape = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
    data = bytes(rng.choice((0, 4, 8, 64)))
    return msgpack.ExtType(46, msgpack.packb({"dtype": dtype, "shape": shape, "data": data}))


def metadata(files: Files, layout: Layout, rng: Random) -> None:
    """Replace the trailer by one with other entries."""
    raw = bytearray(msgpack.packb(any_value(rng)))
    if rng.random() < 0.5:
        raw[rng.randrange(len(raw))] = rng.choice((0x81, 0x91, 0xC1, 0xC6, 0xC9, 0xD4, 0xDD, 0xDF))
    chunk = bytearray(blosc2.compress2(bytes(raw), typesize=1))
    if rng.random() < 0.3:
        chunk[rng.randrange(32)] = rng.randrange(256)
    index = files[layout.main][layout.index_start : layout.trailer_start]
    replaced_tail(files, layout, index, trailer_of(b"v", bytes(chunk)))


def trailer_of(name: bytes, chunk: bytes) -> bytes:
    """Write a trailer of one entry, without a fingerprint."""
    offset = 3 + 3 + 3 + 1 + len(name) + 5 + 3
    head = b"\x94\x01\x93\xcd\x00\x0a\xde\x00\x01" + bytes([0xA0 + len(name)]) + name
    section = head + b"\xd2" + struct.pack(">i", offset) + b"\xdc\x00\x01"
    section += b"\xc6" + struct.pack(">I", len(chunk)) + chunk
    return section + b"\xce" + bytes(4) + b"\xd8" + bytes(17)


def sealed(files: Files, layout: Layout, rng: Random) -> None:
    """Add an invalid record of checksums with a valid seal (docs/integrity.md)."""
    names = ("version", "array", "index", "chunks")
    values = (rng.choice((1, any_value(rng))), *(any_value(rng) for _ in names[1:]))
    record = msgpack.packb(
        rng.choice((dict(zip(names, values, strict=True)), any_value(rng), SOUND_ARRAY))
    )
    frame = files[layout.main]
    index = bytearray(frame[layout.index_start : layout.trailer_start])
    if len(index) >= 32:
        index[23:29] = b"\xb2" + xxhash.xxh3_64_digest(record)[:5]
    chunk = blosc2.compress2(record, typesize=1)
    replaced_tail(files, layout, bytes(index), trailer_of(b"b2nd.xxh3", chunk))


def array_dtype(files: Files, layout: Layout, rng: Random) -> None:
    """Give the array metalayer another dtype, if it is the last metalayer."""
    frame = files[layout.main]
    at = frame.rfind(b"\x00\xdb\x00\x00", 87, layout.header_len)
    if at < 0:
        return
    text = rng.choice(DTYPES).encode()
    (length,) = struct.unpack_from(">I", frame, at + 2)
    # padded, so that no offset changes; or cut
    text = text.ljust(length)[:length] if rng.random() < 0.5 else text
    change = len(text) - length
    new = bytearray(
        frame[: at + 2] + struct.pack(">I", len(text)) + text + frame[at + 6 + length :]
    )
    content = new.rfind(b"\xc6", 87, at)
    for start, code, add in ((11, ">i", change), (16, ">Q", change), (content + 1, ">I", change)):
        (old,) = struct.unpack_from(code, new, start)
        if content > 0 and 0 <= old + add < 2**31:
            struct.pack_into(code, new, start, old + add)
    files[layout.main] = bytes(new)


def sizes(files: Files, layout: Layout, rng: Random) -> None:
    """Change the length of an axis, and the sizes in the header accordingly."""
    frame = bytearray(files[layout.main])
    at = frame.find(b"\xd3", 92, layout.header_len)
    if at < 0 or at + 9 > layout.header_len:
        return
    (old,) = struct.unpack_from(">q", frame, at + 1)
    factor = rng.choice((2, 3, 2**20, 2**24, 2**27, 2**40))
    (nbytes,) = struct.unpack_from(">q", frame, 30)
    if min(old, nbytes) >= 0 and max(old, nbytes) * factor < 2**63:
        struct.pack_into(">q", frame, at + 1, old * factor)
        struct.pack_into(">q", frame, 30, nbytes * factor)
    files[layout.main] = bytes(frame)


MUTATIONS: Sequence[Callable[[Files, Layout, Random], None]] = (
    *(flip, flip, number, number, number, cut, splice, members, streams, streams, streams),
    *(payload, payload, payload, pipeline, pipeline, pipeline),
    *(sealed, offsets, metadata, metadata, array_dtype, sizes),
)


def mutated(sound: Files, rng: Random) -> Files:
    """Apply one to three mutations to a copy of a frame."""
    files = dict(sound)
    layout = layout_of(sound)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if layout.main in files:
            rng.choice(MUTATIONS)(files, layout, rng)
    return files
