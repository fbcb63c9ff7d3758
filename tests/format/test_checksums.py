"""Checksums of a frame, put together and taken apart as docs/integrity.md says."""

from __future__ import annotations

import struct
from dataclasses import replace

import blosc2
import msgpack
import numpy as np
import pytest
import xxhash

from b2nd_dask import ChecksumError, CorruptChunkError
from b2nd_dask.format.chunk.chunk_header import chunk_digest, require_digest
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import parse_header, with_new_tail
from b2nd_dask.format.index import parse_index, special_code
from b2nd_dask.format.integrity import (
    ChecksumState,
    ChunkColumns,
    Tail,
    Verdict,
    build_tail,
    has_room,
    parse_columns,
)
from b2nd_dask.format.metalayers import RECORD_NAME, is_own_value, users_vlmeta
from b2nd_dask.format.trailer import build_trailer, parse_trailer
from tests.format.by_hand import changed, frame_bytes, parts_of

VALUES = np.random.default_rng(6).random((30, 20))
VALUES[:10, :10] = 0
RAW = frame_bytes(VALUES, chunks=(10, 10), blocks=(5, 5))
PARTS = parts_of(RAW)
HEADER = parse_header(RAW, len(RAW))
INDEX = parse_index(PARTS.index, HEADER, 6)
DIGESTS = np.array([xxhash.xxh3_64(c).intdigest() for c in (
    blosc2.schunk_from_cframe(RAW, copy=True).get_chunk(n) for n in range(1, 6)
)], np.uint64)  # fmt: skip
HEAD = with_new_tail(PARTS.head, cbytes=len(PARTS.data), frame_len=len(RAW))
META = HEADER.metalayers["b2nd"]
GRID = Grid(VALUES.shape, (10, 10), (5, 5), 8)


def by_hand(index_chunk: bytes = PARTS.index, **fields: object) -> tuple[bytes, bytes]:
    """Index chunk and trailer with checksums, made without this package."""
    record = {
        "version": 1,
        "array": META,
        "index": xxhash.xxh3_64(index_chunk).digest(),
        "chunks": b"".join(int(d).to_bytes(8, "big") for d in DIGESTS),
    } | fields
    raw = msgpack.packb(record)
    stamped = changed(index_chunk, 23, b"\xb2" + xxhash.xxh3_64(raw).digest()[:5])
    entry = blosc2.compress2(raw, clevel=0, typesize=1, filters=[], codec=blosc2.Codec.ZSTD)
    assert len(entry) == len(raw) + 32
    covered = build_trailer({RECORD_NAME: bytes(entry)}, fingerprint=True)[:-16]
    return stamped, covered + xxhash.xxh3_128(covered).digest()


def judged(index: bytes, trailer: bytes, head: bytes = HEAD, header=None) -> ChunkColumns:
    vlmeta = parse_trailer(trailer)
    now = header or parse_header(head + RAW[len(head) :], len(RAW))
    tail = Tail(INDEX, index, vlmeta, trailer)
    return parse_columns(tail, head, now, GRID, VALUES.dtype)


def test_what_is_written_is_what_the_documentation_says() -> None:
    stamped, trailer = by_hand()
    table = np.array(DIGESTS, [("digest", "<u8")])
    assert build_tail(PARTS.index, {}, META, table) == (stamped + trailer, True)
    found = judged(stamped, trailer)
    assert found.checksums == Verdict(ChecksumState.VALID, "")
    assert found.stored.tolist() == DIGESTS.tolist()
    assert found.digests.tolist() == [0, *DIGESTS.tolist()]
    assert found.table()["digest"].tolist() == found.digests.tolist()


def test_bytes_behind_the_index_chunk_are_not_covered() -> None:
    stamped, trailer = by_hand()
    assert judged(stamped + b"anything", trailer).checksums.state is ChecksumState.VALID


def test_a_frame_of_python_blosc2_has_none() -> None:
    found = judged(PARTS.index, PARTS.trailer)
    assert found.checksums.state is ChecksumState.ABSENT
    assert found.checksums.reason == "it was written without checksums"
    assert found.digests is None
    assert found.table().dtype.names == ("offset",)


def test_an_index_chunk_that_is_too_short_for_a_stamp() -> None:
    _, trailer = by_hand()
    for length in (20, 24):
        assert judged(PARTS.index[:length], trailer).checksums.state is ChecksumState.ABSENT


def test_an_index_written_anew_leaves_them_absent() -> None:
    _, trailer = by_hand()
    found = judged(PARTS.index, trailer)
    # the record's digest of the index still matches: the stamp alone tells
    assert found.checksums.state is ChecksumState.ABSENT
    assert "other software changed it" in found.checksums.reason


def test_each_byte_of_the_stamp_and_the_trailer_counts() -> None:
    stamped, trailer = by_hand()
    for at in range(23, 29):
        assert judged(changed(stamped, at, stamped[at] ^ 1), trailer).checksums.state is (
            ChecksumState.DAMAGED
        )
    # the length of the trailer, the fingerprint, and what it covers
    for at in (len(trailer) - 20, len(trailer) - 1, len(trailer) - 17, 60, 100):
        found = judged(stamped, changed(trailer, at, trailer[at] ^ 1))
        assert found.checksums.state is ChecksumState.DAMAGED
        assert found.checksums.reason == "its trailer does not match the fingerprint"


@pytest.mark.parametrize(
    ("fields", "state", "reason"),
    [
        ({"version": 2}, ChecksumState.ABSENT, "have version 2, supported is 1"),
        ({"version": "1"}, ChecksumState.DAMAGED, "cannot be read"),
        ({"index": bytes(8)}, ChecksumState.DAMAGED, "offset index does not match"),
        ({"chunks": bytes(8 * 4)}, ChecksumState.DAMAGED, "4 checksums for 5 stored chunks"),
        ({"chunks": bytes(7)}, ChecksumState.DAMAGED, "cannot be read"),
        ({"chunks": 5}, ChecksumState.DAMAGED, "cannot be read"),
        ({"array": b"\x97"}, ChecksumState.DAMAGED, "cannot be read"),
        ({"array": META.replace(b"<f8", b"<i8")}, ChecksumState.DAMAGED, "array metalayer"),
    ],
)
def test_records_that_do_not_fit(
    fields: dict[str, object], state: ChecksumState, reason: str
) -> None:
    found = judged(*by_hand(**fields))
    assert found.checksums.state is state
    assert reason in found.checksums.reason


def test_a_damaged_index_chunk() -> None:
    stamped, trailer = by_hand()
    found = judged(changed(stamped, len(stamped) - 1, stamped[-1] ^ 1), trailer)
    assert found.checksums.state is ChecksumState.DAMAGED
    assert found.checksums.reason == "its offset index does not match its checksum"


def test_a_resize_inside_of_the_last_chunks() -> None:
    shorter = META.replace(struct.pack(">q", 30), struct.pack(">q", 28))
    found = judged(*by_hand(array=shorter))
    assert found.checksums.state is ChecksumState.STALE
    assert "(30, 20)" in found.checksums.reason
    assert "(28, 20)" in found.checksums.reason
    # no chunk came or went: the digests hold, but new checksums need more than that
    assert found.digests is not None
    assert found.table().dtype.names == ("offset",)


def test_a_header_that_nobody_writes() -> None:
    head = changed(HEAD, 86, 1)
    found = judged(*by_hand(), head=head)
    assert found.checksums.state is ChecksumState.DAMAGED
    assert found.checksums.reason == "byte 86 of its header has a value that no software writes"


def without_fingerprint(trailer: bytes) -> bytes:
    """As python-blosc2 leaves a trailer when it sets an entry of vlmeta."""
    return trailer[:-17] + bytes(17)


def test_a_record_copied_from_another_frame() -> None:
    stamped, own = by_hand()
    _, other = by_hand(PARTS.index[:-1] + b"\x77", chunks=bytes(16))
    found = judged(stamped, without_fingerprint(other))
    assert found.checksums.state is ChecksumState.STALE
    assert "copied from another frame" in found.checksums.reason
    # with a fingerprint this package wrote the trailer: it is damage
    assert judged(stamped, other).checksums.state is ChecksumState.DAMAGED
    assert judged(stamped, without_fingerprint(own)).checksums.state is ChecksumState.VALID


def test_a_record_of_another_name() -> None:
    stamped, trailer = by_hand()
    entry = parse_trailer(trailer)[RECORD_NAME]
    renamed = build_trailer({"b2nd.xxh4": entry})
    found = judged(stamped, renamed)
    assert found.checksums.state is ChecksumState.STALE
    assert judged(stamped, changed(trailer, trailer.index(b"xxh3"), 1)).checksums.state is (
        ChecksumState.DAMAGED
    )


def test_a_record_that_unpacks_to_more_than_it_can_need() -> None:
    raw = bytes(10**6)
    bomb = {RECORD_NAME: bytes(blosc2.compress2(raw, typesize=1))}
    stamped = changed(PARTS.index, 23, b"\xb2" + xxhash.xxh3_64(raw).digest()[:5])
    found = judged(stamped, build_trailer(bomb))
    assert found.checksums.state is ChecksumState.STALE


def test_a_frame_without_chunks_is_valid() -> None:
    none = replace(INDEX, offsets=np.empty(0, np.int64))
    found = parse_columns(Tail(none, b"", {}, b""), b"", HEADER, GRID, VALUES.dtype)
    assert found.checksums.state is ChecksumState.VALID
    assert found.digests.shape == (0,)


def test_digests_of_chunks() -> None:
    chunk = bytes(blosc2.compress2(VALUES))
    assert chunk_digest(chunk) == int.from_bytes(xxhash.xxh3_64(chunk).digest(), "big")
    longer = chunk + b"what follows"
    require_digest([longer], len(longer), chunk_digest(chunk))
    for at in (0, 40, len(chunk) - 1):
        with pytest.raises(ChecksumError) as caught:
            require_digest([changed(chunk, at, chunk[at] ^ 1)], len(chunk), chunk_digest(chunk))
        assert caught.value.offset == 0
    with pytest.raises(CorruptChunkError) as caught:
        require_digest([chunk[:-1]], len(chunk) - 1, chunk_digest(chunk))
    assert caught.value.offset == 12


def test_columns_of_digests() -> None:
    zeros = special_code(1)
    offsets = np.array([zeros, 0, 500, zeros, 40])
    some = ChunkColumns(
        Verdict(ChecksumState.VALID),
        replace(INDEX, offsets=offsets),
        GRID,
        VALUES.dtype,
        np.array([7, 8, 9], np.uint64),
    )
    assert some.digests.tolist() == [0, 7, 8, 0, 9]
    none = replace(INDEX, offsets=np.broadcast_to(zeros, 10**12))
    assert replace(some, index=none, stored=np.empty(0, np.uint64)).digests.strides == (0,)


def test_the_users_entries() -> None:
    assert users_vlmeta({"a": 1, RECORD_NAME: 2}) == {"a": 1}
    assert has_room(dict.fromkeys(map(str, range(15)), b""), 10**6)
    assert not has_room(dict.fromkeys(map(str, range(16)), b""), 0)
    assert not has_room({}, 2**28)
    record = {"version": 1, "array": b"", "index": b"", "chunks": b""}
    assert is_own_value(RECORD_NAME, record)
    assert not is_own_value(RECORD_NAME, {"version": 1})
    assert not is_own_value(RECORD_NAME, [*record])
