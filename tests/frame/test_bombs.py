"""Small files that ask for much: their memory and time are bounded, honest files still open."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import blosc2
import msgpack
import numpy as np
import pytest

from b2nd_dask import FrameFormatError, open_b2nd, verify
from b2nd_dask.format.chunk.codec import encode_repeated
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, build_header, parse_header
from b2nd_dask.format.index import build_index
from b2nd_dask.format.integrity import build_tail
from b2nd_dask.format.metalayers import build_array_meta
from b2nd_dask.format.trailer import build_trailer
from b2nd_dask.format.values import unpack_value
from b2nd_dask.frame.array import reference_of
from tests.limited import run_limited

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")

ZEROS = -(0x7F << 56)
READ = "answer = attempt(lambda: open_b2nd(path)[5:7].tolist())"


def frame_around(
    grid: Grid,
    data: bytes,
    index: bytes,
    *,
    sealed: bool = False,
    sparse: bool = False,
    vlmeta: dict[str, bytes] | None = None,
) -> bytes:
    """Put a frame of bytes together."""
    trailer = build_trailer(vlmeta or {})
    if sealed:
        meta = build_array_meta(grid, np.dtype("u1"))
        nothing = np.empty(0, [("digest", "<u8")])
        index, trailer = build_tail(index, {}, meta, nothing)[0], b""
    header = FrameHeader(
        header_len=0,
        frame_len=0,
        sparse=sparse,
        nbytes=grid.nchunks * grid.chunk_nbytes,
        cbytes=len(data),
        typesize=1,
        blocksize=grid.block_nbytes,
        chunksize=grid.chunk_nbytes,
        compression=Compression(codec=5, clevel=5, filters=(0,) * 6),
        metalayers={"b2nd": build_array_meta(grid, np.dtype("u1"))},
    )
    length = len(build_header(header, has_vlmeta=sealed)) + len(data) + len(index) + len(trailer)
    head = build_header(replace(header, frame_len=length), has_vlmeta=sealed)
    return head + data + index + trailer


def frame_of(offsets: np.ndarray, path: Path, **how: object) -> int:
    """Write a frame of bytes in chunks of one element; gives the length of its index chunk."""
    index = blosc2.compress2(offsets.astype("<i8"), typesize=8, **how)
    path.write_bytes(frame_around(Grid((len(offsets),), (1,), (1,), 1), b"", index))
    return len(index)


def codes(n: int) -> np.ndarray:
    """Index of chunks of zeros and of chunks that were never written, one in a thousand."""
    offsets = np.full(n, ZEROS)
    offsets[::1000] = -(0x7C << 56)
    return offsets


def test_a_million_chunks_of_a_small_index_open(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    n = 1_000_000
    packed = frame_of(codes(n), path, codec=blosc2.Codec.ZSTD, clevel=9, blocksize=8 * n)
    assert packed < 8 * n / 1000
    assert run_limited(READ, megabytes=100, path=str(path)) == "[0, 0]"


def test_an_index_that_unpacks_beyond_measure_is_refused(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    n = 2**25
    frame_of(codes(n), path, codec=blosc2.Codec.ZSTD, clevel=1, blocksize=8 * n)
    answer = run_limited(READ, megabytes=100, path=str(path))
    assert answer.startswith("FrameFormatError")
    assert "cannot hold the offsets of 33554432 chunks" in answer


def test_more_stored_chunks_than_the_data_holds(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    frame_of(np.arange(100) * 0, path)
    with pytest.raises(FrameFormatError, match="offset index"):
        open_b2nd(path)


def test_an_item_of_a_huge_chunk_costs_a_block(fresh_path: Callable[[], Path]) -> None:
    nblocks, blocksize = 1700, 1 << 20
    places = 32 + 4 * nblocks + 4 * np.arange(nblocks)
    sizes = struct.pack("<iii", nblocks * blocksize, blocksize, 32 + 8 * nblocks)
    # each block is a stream of length 0, which is zeros
    chunk = b"\x05\x01\x35\x01" + sizes + bytes(16) + places.astype("<i4").tobytes()
    chunk += bytes(4 * nblocks)
    grid = Grid((nblocks * blocksize,), (nblocks * blocksize,), (blocksize,), 1)
    path = fresh_path()
    path.write_bytes(frame_around(grid, chunk, build_index(np.zeros(1, np.int64))))
    assert path.stat().st_size < 14_000
    assert run_limited(READ, megabytes=50, path=str(path)) == "[0, 0]"


MOST = 2**28 - 1
ONE_CODE = encode_repeated(
    ZEROS.to_bytes(8, "little", signed=True), nbytes=8 * MOST, blocksize=1 << 14
)

ONE_VALUE = {
    "verify": "verify(path)",
    "read": "open_b2nd(path, verify='auto')[5:7].tolist()",
    "read, checked": "open_b2nd(path, verify=sealed)[5:7].tolist()",
    "points": "da.take(from_b2nd(path, chunks='auto'), [3, 1000]).compute().tolist()",
    "graph": "from_b2nd(path, chunks='auto')[5:7].compute().tolist()",
    "info": "open_b2nd(path).info['chunk kinds']",
    "seal": "seal(path)",
    "compact": "compact(path)",
}


@pytest.mark.parametrize("sealed", [True, False])
def test_very_many_chunks_of_one_value_take_no_memory(
    sealed: bool, fresh_path: Callable[[], Path]
) -> None:
    path = fresh_path()
    grid = Grid((MOST,), (1,), (1,), 1)
    # what a writer that was killed left behind makes `compact` write it anew
    left = b"\5\1" + bytes(98)
    path.write_bytes(frame_around(grid, b"", ONE_CODE, sealed=sealed) + left)
    assert path.stat().st_size < 700
    calls = "".join(f"{name!r}: attempt(lambda: {call}),\n" for name, call in ONE_VALUE.items())
    code = (
        "import dask.array as da\n"
        "from b2nd_dask import compact, seal, verify\n"
        f"answer = {{{calls}}}"
    )
    answers = run_limited(code, megabytes=120, path=str(path), sealed=sealed)
    read = dict.fromkeys(["read", "read, checked", "points", "graph"], "[0, 0]")
    checksum_state = "verified: all 0 stored chunks are" if sealed else "no valid checksums: it was"
    assert answers.pop("verify").startswith(f"{path}: {checksum_state}")
    told = {"info": f"{MOST} zeros", "seal": str(not sealed)}
    # `seal` has cut off what is not part of the frame, and left its old index
    assert int(answers.pop("compact")) == (100 if sealed else len(ONE_CODE) + 35)
    assert answers == {**read, **told}
    assert verify(path).ok
    assert open_b2nd(path)[MOST - 1] == 0


def hollow(path: Path, nchunks: int, index: bytes, trailer_len: int, index_len: int) -> None:
    """Write a sparse frame of which nearly all is a hole of the file."""
    path.mkdir()
    grid = Grid((nchunks,), (1,), (1,), 1)
    whole = frame_around(grid, b"", b"", sparse=True)
    header_len, end = len(whole) - 35, whole[-23:]
    head = bytearray(whole[:header_len])
    frame_len = header_len + index_len + trailer_len
    head[16:24] = frame_len.to_bytes(8, "big")
    main = path / "chunks.b2frame"
    with main.open("wb") as file:
        file.write(bytes(head) + index)
        file.truncate(frame_len)
        if trailer_len:
            file.seek(frame_len - 23)
            file.write(end[:1] + struct.pack(">I", trailer_len) + end[5:])
    assert main.stat().st_blocks * 512 < 64 * 1024


def plain_index(nchunks: int) -> bytes:
    """Header of an index chunk that is not compressed; blocks of 16 KiB."""
    sizes = struct.pack("<iii", 8 * nchunks, 1 << 14, 32 + 8 * nchunks)
    return b"\x05\x01\x17\x08" + sizes + bytes(5) + b"\1" + bytes(10)


HOLLOW = {
    "all": (MOST, b"", 0, 4_500_000_000, "no trailer at the frame's end"),
    "index": (MOST, b"", 35, 4 << 30, "the offset index is damaged"),
    "gap": (MOST, build_index(np.full(2, ZEROS)), 35, 4 << 30, "the offset index is damaged"),
    "offsets": (2**27, plain_index(2**27), 35, 32 + 2**30, "has 16777216 zeros in a row"),
    "trailer": (4, build_index(np.full(4, ZEROS)), 250 << 20, 40, "a trailer starts with"),
    "long trailer": (MOST, b"", 2**32 - 1, 40, "damaged"),
    "metadata": (MOST, ONE_CODE, 3 << 30, 40, "a trailer of 3221225472 bytes is too long"),
}


@pytest.mark.parametrize("name", HOLLOW)
def test_holes_of_a_file_are_not_read(name: str, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    nchunks, index, trailer_len, index_len, problem = HOLLOW[name]
    hollow(path, nchunks, index, trailer_len, index_len)
    answer = run_limited(READ, megabytes=120, path=str(path))
    assert answer.startswith("FrameFormatError")
    assert problem in answer
    assert str(path) in answer


def test_a_hole_behind_the_chunks_of_an_embed_store_is_not_read(tmp_path: Path) -> None:
    store = blosc2.EmbedStore(urlpath=str(tmp_path / "a.b2e"), mode="w")
    store["/x"] = np.arange(10)
    raw = (tmp_path / "a.b2e").read_bytes()
    header = parse_header(raw, len(raw))
    hole, head = 1 << 32, raw[: header.header_len]
    for nbytes in (header.frame_len, header.cbytes):
        head = head.replace(struct.pack(">q", nbytes), struct.pack(">q", nbytes + hole))
    with (tmp_path / "b.b2e").open("wb") as file:
        file.write(head + raw[header.header_len : header.index_start])
        file.seek(hole, 1)
        file.write(raw[header.index_start :])
    read = "answer = open_b2nd(path, component='x')[5:7].tolist()"
    assert run_limited(read, megabytes=120, path=str(tmp_path / "b.b2e")) == [5, 6]


def test_a_long_tail_of_an_honest_frame_opens(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    # 3 million chunks at places that do not pack, and 30 MB of metadata that do not either
    n = 3_000_000
    places = np.random.default_rng(1).permutation(n)
    index = blosc2.compress2(places, typesize=8, clevel=0)
    grid = Grid((n,), (1,), (1,), 1)
    noise = np.random.default_rng(2).bytes(30_000_000)
    vlmeta = {"noise": blosc2.compress2(msgpack.packb(noise), typesize=1)}
    path.mkdir()
    (path / "chunks.b2frame").write_bytes(
        frame_around(grid, b"", index, sparse=True, vlmeta=vlmeta)
    )
    frame = open_b2nd(path)
    np.testing.assert_array_equal(reference_of(frame).parsed.index.offsets, places)
    assert frame.vlmeta["noise"] == noise
    assert open_b2nd(path).version == frame.version


UNPACK = """
raw = bytes.fromhex(head) + bytes.fromhex(item) * count
answer = attempt(lambda: type(unpack_value(raw)))
"""

BOMBS = {
    "ten million numbers": (b"\xdd" + struct.pack(">I", 10**7), b"\0", 10**7),
    "ten million maps": (b"\xdd" + struct.pack(">I", 10**7), b"\x80", 10**7),
    "arrays announced in arrays": (b"", b"\xdd" + struct.pack(">I", 10**6), 10**6),
    "maps announced in maps": (b"", b"\xdf" + struct.pack(">I", 10**6), 10**6),
    "a hundred thousand empty sets": (b"\xdd" + struct.pack(">I", 10**5), b"\xd4\x2d\x90", 10**5),
}


@pytest.mark.parametrize("name", BOMBS)
def test_metadata_of_too_many_values_is_refused(name: str) -> None:
    head, item, count = BOMBS[name]
    answer = run_limited(UNPACK, megabytes=64, head=head.hex(), item=item.hex(), count=count)
    assert answer.startswith("FrameFormatError: it holds more than 1048576 values")


def test_a_list_of_a_million_numbers_is_metadata(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    array = blosc2.zeros((4,), urlpath=str(path))
    array.schunk.vlmeta["time"] = list(range(10**6))
    code = "answer = sum(open_b2nd(path).vlmeta['time'])"
    assert run_limited(code, megabytes=200, path=str(path)) == sum(range(10**6))


def colliding(n: int) -> list[msgpack.ExtType]:
    """Complex numbers of one hash: that of the real part + 1000003 times that of the other."""
    pairs = [(-1000003.0 * i, float(i)) for i in range(n)]
    assert len({hash(complex(*pair)) for pair in pairs}) == 1
    return [msgpack.ExtType(44, struct.pack(">dd", *pair)) for pair in pairs]


@pytest.mark.parametrize("container", ["set", "map"])
def test_members_chosen_to_share_a_hash_are_refused(container: str) -> None:
    members = [msgpack.packb(member) for member in colliding(30_000)]
    if container == "set":
        head = b"\xdd" + struct.pack(">I", len(members))
        raw = msgpack.packb(msgpack.ExtType(45, head + b"".join(members)))
    else:
        raw = b"\xdf" + struct.pack(">I", len(members)) + b"\0".join(members) + b"\0"
    with pytest.raises(FrameFormatError, match="share one hash"):
        unpack_value(raw)
