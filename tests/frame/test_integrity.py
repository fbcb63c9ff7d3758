"""Checksums: what is written, what other software leaves of them, what damage is found."""

from __future__ import annotations

import errno
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import blosc2
import msgpack
import numpy as np
import pytest
import xxhash

from b2nd_dask import B2ndError, from_b2nd, open_b2nd, seal, to_b2nd, verify
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.metalayers import RECORD_NAME
from b2nd_dask.format.trailer import WRITE_ID_NBYTES
from b2nd_dask.frame.array import reference_of
from tests.frame.sealed import VALUES, flip, listed_vlmeta, main_file, places, stored_chunks, write

# stored plain, every new chunk is as long as the one before
LEVELS = {"plain": 0, "compressed": 5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b2nd"


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def contiguous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def new_chunk(array: Any) -> np.ndarray:
    return np.arange(array.schunk.chunksize // 8, dtype="f8")


def delete_and_append(array: Any) -> None:
    array.schunk.delete_chunk(3)
    array.schunk.append_data(new_chunk(array))


def insert_and_delete(array: Any) -> None:
    array.schunk.insert_data(2, new_chunk(array), True)
    array.schunk.delete_chunk(array.schunk.nchunks - 1)


def reorder(array: Any) -> None:
    array.schunk.reorder_offsets(np.arange(array.schunk.nchunks)[::-1].copy())


def same_bytes(array: Any) -> None:
    array.schunk.update_chunk(7, array.schunk.get_chunk(7))


def assign(*where: Any, value: float = 7.25) -> Callable[[Any], None]:
    def change(array: Any) -> None:
        array[where] = value

    return change


def resize(*shape: int) -> Callable[[Any], None]:
    return lambda array: array.resize(shape)


def set_vlmeta(array: Any) -> None:
    array.schunk.vlmeta["later"] = {"a": [1, 2, 3]}


def set_meta(array: Any) -> None:
    array.schunk.meta["m"] = 2


CHANGES = {
    "one element": (assign(50, 40), ChecksumState.ABSENT),
    "the element that is there": (assign(50, 40, value=VALUES[50, 40]), ChecksumState.ABSENT),
    "a region": (assign(slice(20, 70), slice(5, 50)), ChecksumState.ABSENT),
    "a chunk to zeros": (assign(slice(48, 72), slice(0, 17), value=0), ChecksumState.ABSENT),
    "zeros to a chunk": (assign(0, 0), ChecksumState.ABSENT),
    "all": (assign(...), ChecksumState.ABSENT),
    "update_data": (lambda a: a.schunk.update_data(7, new_chunk(a), True), ChecksumState.ABSENT),
    "update_chunk by its own bytes": (same_bytes, ChecksumState.ABSENT),
    "delete, append": (delete_and_append, ChecksumState.ABSENT),
    "insert, delete": (insert_and_delete, ChecksumState.ABSENT),
    "reorder": (reorder, ChecksumState.ABSENT),
    "grow by chunks": (resize(130, 60), ChecksumState.ABSENT),
    "shrink by chunks": (resize(50, 60), ChecksumState.ABSENT),
    "grow inside the last chunk": (resize(110, 60), ChecksumState.STALE),
    "shrink inside the last chunk": (resize(98, 60), ChecksumState.STALE),
    "there and back inside the last chunk": (
        lambda a: (a.resize((98, 60)), a.resize((100, 60))),
        ChecksumState.VALID,
    ),
    "vlmeta": (set_vlmeta, ChecksumState.VALID),
    "fixed metadata": (set_meta, ChecksumState.VALID),
    "opened for changes, and read": (lambda a: a[...], ChecksumState.VALID),
}


#: That leave another shape around the same chunks, which nothing tells from a flipped bit.
RESHAPED = {"grow inside the last chunk", "shrink inside the last chunk"}


# a chunk in a file of its own is replaced alike, whether or not it is as long as before
@pytest.mark.parametrize(
    ("contiguous", "level"),
    [(True, LEVELS["plain"]), (True, LEVELS["compressed"]), (False, LEVELS["compressed"])],
    ids=["contiguous-plain", "contiguous-compressed", "sparse-compressed"],
)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_by_python_blosc2(path: Path, contiguous: bool, level: int, name: str) -> None:
    change, checksum_state = CHANGES[name]
    write(path, contiguous=contiguous, level=level)
    assert verify(path).ok
    array = blosc2.open(str(path), mode="a")
    change(array)
    expected = array[...]
    del array
    found = verify(path)
    assert (found.checksum_state, found.bad) == (checksum_state, ())
    assert found.ok == (checksum_state is ChecksumState.VALID)
    warned = pytest.warns(UserWarning, match=r"shape \(100, 60\): .* resized")
    with warned if name in RESHAPED else nullcontext():
        np.testing.assert_array_equal(open_b2nd(path)[...], expected)
    # sealed again, python-blosc2 reads and changes it as before
    seal(path)
    assert verify(path).ok
    array = blosc2.open(str(path), mode="a")
    np.testing.assert_array_equal(array[...], expected)
    array[5:30] = -1.0
    expected[5:30] = -1.0
    del array
    assert verify(path).checksum_state is ChecksumState.ABSENT
    np.testing.assert_array_equal(blosc2.open(str(path))[...], expected)
    np.testing.assert_array_equal(open_b2nd(path)[...], expected)


@pytest.mark.parametrize("value", [0.0, np.nan, 4.0])
def test_frames_of_constants(path: Path, contiguous: bool, value: float) -> None:
    write(path, contiguous=contiguous, values=np.full((100, 60), value))
    assert verify(path).ok
    array = blosc2.open(str(path), mode="a")
    np.testing.assert_array_equal(array[...], value)
    array[3, 3] = 9
    del array
    assert verify(path).checksum_state is ChecksumState.ABSENT


def test_a_copy_by_python_blosc2_has_none(path: Path, tmp_path: Path) -> None:
    write(path, contiguous=True)
    array = blosc2.open(str(path))
    copy = tmp_path / "copy.b2nd"
    array.copy(urlpath=str(copy))
    assert verify(copy).checksum_state is ChecksumState.ABSENT
    # and where the user carries all of vlmeta along, neither
    again = tmp_path / "again.b2nd"
    new = array.copy(urlpath=str(again))
    for name, entry in array.schunk.vlmeta[:].items():
        new.schunk.vlmeta[name] = entry
    assert verify(again).checksum_state is ChecksumState.ABSENT
    np.testing.assert_array_equal(open_b2nd(again)[...], VALUES)


def test_one_value_is_read_by_the_documentation_alone(path: Path) -> None:
    """docs/integrity.md, followed without this package."""
    write(path, contiguous=True)
    raw = path.read_bytes()
    header_len, index_at, trailer_at, frame_len = places(path)
    trailer, index = raw[trailer_at:frame_len], raw[index_at:trailer_at]
    assert trailer[-17] == 3
    assert trailer[-16:] == xxhash.xxh3_128_digest(trailer[:-16])
    record = listed_vlmeta(path)["b2nd.xxh3"]
    packed = msgpack.packb(record)
    assert index[23:29] == b"\xb2" + xxhash.xxh3_64_digest(packed)[:5]
    assert record["version"] == 1
    index = index[: int.from_bytes(index[12:16], "little")]
    assert record["index"] == xxhash.xxh3_64_digest(index[:23] + bytes(6) + index[29:])
    assert raw[:header_len].count(record["array"]) == 1
    offsets = np.frombuffer(blosc2.decompress2(index), "<i8")
    expected = b""
    for offset in offsets[offsets >= 0].tolist():
        (cbytes,) = struct.unpack_from("<i", raw, header_len + offset + 12)
        expected += xxhash.xxh3_64_digest(raw[header_len + offset :][:cbytes])
    assert record["chunks"] == expected


def test_the_record_shows_in_python_blosc2_alone(path: Path, tmp_path: Path) -> None:
    """As docs/integrity.md says: one entry more there, none here, none that is carried along."""
    to_b2nd(VALUES, path, vlmeta={"units": "K"})
    array = blosc2.open(str(path))
    assert list(array.schunk.vlmeta[:]) == ["units", "b2nd.xxh3"]
    assert dict(open_b2nd(path).vlmeta) == dict(open_b2nd(path).attrs) == {"units": "K"}
    again = tmp_path / "again.b2nd"
    array.copy(urlpath=str(again))
    assert dict(open_b2nd(again).vlmeta) == {"units": "K"}
    to_b2nd(from_b2nd(path) * 2, again, mode="w", vlmeta="keep")
    assert verify(again).ok


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_each_damaged_chunk_is_named(path: Path, contiguous: bool, level: int) -> None:
    write(path, contiguous=contiguous, level=level)
    rng = random.Random(11)
    chunks = stored_chunks(path)
    assert len(chunks) == 19
    for number, (chunk, (file, start, stop)) in enumerate(chunks.items()):
        kept = file.read_bytes()
        # bytes of the header, of four chunks in a row each of them, and one behind
        header = range(start + number % 4, start + 32, 4)
        for at in [*header, *rng.sample(range(start + 32, stop), 1)]:
            flip(file, at, rng.randrange(8))
            result = verify(path)
            assert not result.ok
            assert [error.chunk for error in result.bad] == [chunk], at
            assert (result.checksum_state, result.nchunks) == (ChecksumState.VALID, 19)
            file.write_bytes(kept)
    for file, start, _ in chunks.values():
        flip(file, start + 33)
    assert [error.chunk for error in verify(path).bad] == list(chunks)


def test_every_byte_of_index_and_trailer_is_held(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    file = main_file(path)
    kept = file.read_bytes()
    _, index_at, _, frame_len = places(path)
    rng = random.Random(12)
    # which write made the frame is told by bytes that no reader of data looks at
    mark = kept.index(b"b2ndmark")
    for at in {*range(index_at, frame_len)} - {*range(mark, mark + WRITE_ID_NBYTES)}:
        flip(file, at, rng.randrange(8))
        assert is_found(path), at
        file.write_bytes(kept)


def test_every_byte_of_the_array_metalayer_is_held(path: Path) -> None:
    write(path, contiguous=True)
    kept = path.read_bytes()
    bound = listed_vlmeta(path)[RECORD_NAME]["array"]
    start = kept.index(bound)
    rng = random.Random(13)
    for at in range(start, start + len(bound)):
        for bit in rng.sample(range(8), 3):
            flip(path, at, bit)
            assert is_found(path), at
            path.write_bytes(kept)


def is_found(path: Path) -> bool:
    """Whether damage is found by `verify`, at the latest."""
    try:
        return not verify(path).ok
    except B2ndError:
        return True


def test_missing_and_exchanged_chunk_files(path: Path) -> None:
    write(path, contiguous=False)
    chunks = stored_chunks(path)
    (first, (a, *_)), (second, (b, *_)), (third, (c, *_)) = list(chunks.items())[:3]
    bytes_a, bytes_b = a.read_bytes(), b.read_bytes()
    a.write_bytes(bytes_b)
    b.write_bytes(bytes_a)
    c.unlink()
    result = verify(path)
    assert [error.chunk for error in result.bad] == [first, second, third]
    assert "is missing" in str(result.bad[2])
    assert c.name in str(result.bad[2])
    assert "3 of 19 stored chunks" in str(result)


@pytest.mark.parametrize("contiguous", [True, False])
def test_sectors_that_the_disk_cannot_read_are_damage_of_their_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contiguous: bool
) -> None:
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).integers(0, 255, (20, 10_000), np.uint8)
    to_b2nd(values, path, chunks=(1, 10_000), contiguous=contiguous)
    parsed = reference_of(open_b2nd(path)).parsed
    bad = parsed.header.header_len + int(parsed.index.offsets[7]) + 5000
    file = path / "00000007.chunk" if not contiguous else path
    original = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        at = bad if contiguous else 5000
        if os.path.samestat(os.fstat(fd), file.stat()) and offset <= at < offset + len(buffers[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    found = verify(path)
    assert found.nchunks == 20
    (error,) = found.bad
    assert error.chunk == 7
    assert "cannot be read: Input/output error" in str(error)
    assert str(path) in str(error)


def test_verify_takes_little_memory_for_many_small_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).integers(0, 2**60, 20_000)
    to_b2nd(values, path, chunks=1, cparams={"clevel": 0})
    open_b2nd(path)
    tracemalloc.start()
    try:
        assert verify(path, threads=2).ok
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
