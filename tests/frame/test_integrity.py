"""Checksums: what is written, what other software leaves of them, what damage is found."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import msgpack
import numpy as np
import pytest
import xxhash

from b2nd_dask import (
    B2ndError,
    ChecksumError,
    UnsupportedFrameError,
    open_b2nd,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.format.integrity import RECORD_NAME, Integrity, Trust
from b2nd_dask.frame.cache import FrameCache
from b2nd_dask.storage import Location
from tests.vectors import DATA

CHUNKS, BLOCKS = (24, 17), (10, 5)
VALUES = np.random.default_rng(5).normal(size=(100, 60)).round(2)
# a chunk of zeros, one that repeats an item
VALUES[:24, :17] = 0
VALUES[24:48, 17:34] = 3
# stored plain, every new chunk is as long as the one before
LEVELS = {"plain": 0, "compressed": 5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b2nd"


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def contiguous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def write(path: Path, *, contiguous: bool, level: int = 5, values: Any = VALUES) -> None:
    to_b2nd(
        values,
        path,
        chunks=CHUNKS,
        blocks=BLOCKS,
        contiguous=contiguous,
        cparams={"clevel": level},
        meta={"m": 1},
        vlmeta={"v": 1},
    )


def integrity(path: Path) -> Integrity:
    """What the frame says now."""
    return FrameCache().open(Location.of(path)).parsed.integrity


def main_file(path: Path) -> Path:
    return path / "chunks.b2frame" if path.is_dir() else path


def places(path: Path) -> tuple[int, int, int, int]:
    """Where the data, the index chunk, the trailer and the frame end, from the header alone."""
    raw = main_file(path).read_bytes()
    (header_len,) = struct.unpack_from(">i", raw, 11)
    (frame_len,) = struct.unpack_from(">Q", raw, 16)
    (cbytes,) = struct.unpack_from(">q", raw, 39)
    (trailer_len,) = struct.unpack_from(">I", raw, frame_len - 22)
    index = header_len if path.is_dir() else header_len + cbytes
    return header_len, index, frame_len - trailer_len, frame_len


def listed_vlmeta(path: Path) -> dict[str, Any]:
    """What python-blosc2 shows; its schunk must not outlive its array."""
    array = blosc2.open(str(path))
    return dict(array.schunk.vlmeta[:])


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


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
    "one item": (assign(50, 40), Trust.ABSENT),
    "the item that is there": (assign(50, 40, value=VALUES[50, 40]), Trust.ABSENT),
    "a region": (assign(slice(20, 70), slice(5, 50)), Trust.ABSENT),
    "a chunk to zeros": (assign(slice(48, 72), slice(0, 17), value=0), Trust.ABSENT),
    "zeros to a chunk": (assign(0, 0), Trust.ABSENT),
    "all": (assign(...), Trust.ABSENT),
    "update_data": (lambda a: a.schunk.update_data(7, new_chunk(a), True), Trust.ABSENT),
    "update_chunk by its own bytes": (same_bytes, Trust.ABSENT),
    "delete, append": (delete_and_append, Trust.ABSENT),
    "insert, delete": (insert_and_delete, Trust.ABSENT),
    "reorder": (reorder, Trust.ABSENT),
    "grow by chunks": (resize(130, 60), Trust.ABSENT),
    "shrink by chunks": (resize(50, 60), Trust.ABSENT),
    "grow inside the last chunk": (resize(110, 60), Trust.ABSENT),
    "shrink inside the last chunk": (resize(98, 60), Trust.ABSENT),
    "there and back inside the last chunk": (
        lambda a: (a.resize((98, 60)), a.resize((100, 60))),
        Trust.VALID,
    ),
    "vlmeta": (set_vlmeta, Trust.VALID),
    "fixed metadata": (set_meta, Trust.VALID),
    "opened for changes, and read": (lambda a: a[...], Trust.VALID),
}


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize(("change", "trust"), CHANGES.values(), ids=CHANGES)
def test_changes_by_python_blosc2(
    path: Path, contiguous: bool, level: int, change: Callable[[Any], None], trust: Trust
) -> None:
    write(path, contiguous=contiguous, level=level)
    assert verify(path).ok
    array = blosc2.open(str(path), mode="a")
    change(array)
    expected = array[...]
    del array
    found = verify(path)
    assert (found.trust, found.bad) == (trust, ())
    assert found.ok == (trust is Trust.VALID)
    np.testing.assert_array_equal(open_b2nd(path)[...], expected)
    # sealed again, python-blosc2 reads and changes it as before
    seal(path)
    assert verify(path).ok
    array = blosc2.open(str(path), mode="a")
    np.testing.assert_array_equal(array[...], expected)
    array[5:30] = -1.0
    expected[5:30] = -1.0
    del array
    assert verify(path).trust is Trust.ABSENT
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
    assert verify(path).trust is Trust.ABSENT


def test_a_copy_by_python_blosc2_has_none(path: Path, tmp_path: Path) -> None:
    write(path, contiguous=True)
    array = blosc2.open(str(path))
    copy = tmp_path / "copy.b2nd"
    array.copy(urlpath=str(copy))
    assert verify(copy).trust is Trust.ABSENT
    # and where the user carries all of vlmeta along, neither
    again = tmp_path / "again.b2nd"
    new = array.copy(urlpath=str(again))
    for name, entry in array.schunk.vlmeta[:].items():
        new.schunk.vlmeta[name] = entry
    assert verify(again).trust is Trust.ABSENT
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


def stored_chunks(path: Path) -> dict[int, tuple[Path, int, int]]:
    """File, start and stop of each stored chunk."""
    header_len, index_at, trailer_at, _ = places(path)
    index = main_file(path).read_bytes()[index_at:trailer_at]
    offsets = np.frombuffer(blosc2.decompress2(index), "<i8").tolist()
    found = {}
    for chunk, offset in enumerate(offsets):
        if offset >= 0 and path.is_dir():
            file = path / f"{offset:08X}.chunk"
            found[chunk] = file, 0, file.stat().st_size
        elif offset >= 0:
            start = header_len + offset
            (cbytes,) = struct.unpack_from("<i", path.read_bytes(), start + 12)
            found[chunk] = path, start, start + cbytes
    return found


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_each_damaged_chunk_is_named(path: Path, contiguous: bool, level: int) -> None:
    write(path, contiguous=contiguous, level=level)
    rng = random.Random(11)
    chunks = stored_chunks(path)
    assert len(chunks) == 19
    for chunk, (file, start, stop) in chunks.items():
        kept = file.read_bytes()
        # each byte of the header, and some behind
        for at in [*range(start, start + 32), *rng.sample(range(start + 32, stop), 1)]:
            flip(file, at, rng.randrange(8))
            result = verify(path)
            assert not result.ok
            assert [error.chunk for error in result.bad] == [chunk], at
            assert (result.trust, result.nchunks) == (Trust.VALID, 19)
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
    for at in range(index_at, frame_len):
        flip(file, at, rng.randrange(8))
        assert is_found(path), at
        file.write_bytes(kept)


def test_every_byte_of_the_array_metalayer_is_held(path: Path) -> None:
    write(path, contiguous=True)
    kept = path.read_bytes()
    bound = listed_vlmeta(path)[RECORD_NAME]["array"]
    start = kept.index(bound)
    for at in range(start, start + len(bound)):
        for bit in range(8):
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
    assert str(path / c.name) in str(result.bad[2])
    assert "3 of 19 stored chunks" in str(result)


def test_the_record_is_kept_apart_of_the_users_metadata(path: Path, tmp_path: Path) -> None:
    write(path, contiguous=True)
    frame = open_b2nd(path)
    assert dict(frame.vlmeta) == {"v": 1}
    # python-blosc2 shows it, and what it lists may be handed on as it is
    listed = listed_vlmeta(path)
    assert set(listed) == {"v", RECORD_NAME}
    for i, vlmeta in enumerate([listed, frame.vlmeta]):
        copy = tmp_path / f"{i}.b2nd"
        to_b2nd(VALUES + 1, copy, chunks=CHUNKS, vlmeta=vlmeta)
        assert verify(copy).ok
        assert dict(open_b2nd(copy).vlmeta) == {"v": 1}
    kept = tmp_path / "kept.b2nd"
    to_b2nd(frame, kept, vlmeta="keep", meta="keep")
    assert verify(kept).ok
    assert set(listed_vlmeta(kept)) == {"v", RECORD_NAME}


def test_there_is_room_for_15_entries_of_the_users(path: Path) -> None:
    entries = {f"n{i}": i for i in range(16)}
    with pytest.raises(ValueError, match="15 of variable length"):
        to_b2nd(VALUES, path, vlmeta=entries)
    del entries["n0"]
    to_b2nd(VALUES, path, vlmeta=entries)
    assert verify(path).ok
    assert len(listed_vlmeta(path)) == 16


def test_updates_keep_the_checksums_of_other_chunks(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    before = integrity(path).by_chunk
    assert before is not None
    to_b2nd(np.ones((10, 10)), path, mode="r+", region=(slice(50, 60), slice(20, 30)))
    after = integrity(path).by_chunk
    assert after is not None
    assert np.flatnonzero(before != after).tolist() == [9]
    assert verify(path).ok
    to_b2nd(VALUES[:50], path, mode="a", append_axis=0)
    to_b2nd(np.zeros((24, 17)), path, mode="r+", region=(slice(48, 72), slice(0, 17)))
    assert verify(path).ok
    assert open_b2nd(path).shape == (150, 60)


def test_updates_do_not_vouch_for_what_others_changed(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    array = blosc2.open(str(path), mode="a")
    array[0, 0] = 5
    del array
    to_b2nd(np.ones((10, 10)), path, mode="r+", region=(slice(50, 60), slice(20, 30)))
    assert verify(path).trust is Trust.ABSENT
    assert list(listed_vlmeta(path)) == ["v"]
    seal(path)
    assert verify(path).ok


def test_empty_arrays_have_nothing_to_check(path: Path, contiguous: bool) -> None:
    to_b2nd(np.empty((0, 60)), path, chunks=CHUNKS, contiguous=contiguous)
    assert verify(path).ok
    to_b2nd(VALUES, path, mode="a", append_axis=0)
    assert verify(path).nchunks == 19
    assert verify(path).ok


def test_a_sealed_frame_is_left_alone(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    before = main_file(path).read_bytes()
    seal(path)
    assert main_file(path).read_bytes() == before


def test_a_damaged_frame_is_not_sealed(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    _, _, trailer_at, _ = places(path)
    flip(main_file(path), trailer_at + 50)
    before = main_file(path).read_bytes()
    with pytest.raises(ChecksumError, match="not sealed"):
        seal(path)
    assert main_file(path).read_bytes() == before


def test_a_chunk_that_is_none_is_not_sealed(path: Path, contiguous: bool) -> None:
    blosc2.asarray(VALUES, chunks=CHUNKS, urlpath=str(path), contiguous=contiguous)
    file, start, _ = stored_chunks(path)[4]
    raw = bytearray(file.read_bytes())
    raw[start + 12 : start + 16] = b"\xff\xff\xff\x7f"
    file.write_bytes(raw)
    with pytest.raises(B2ndError, match="chunk 4"):
        seal(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.b2nd"]


def test_a_frame_that_is_full_of_metadata_is_not_sealed(path: Path) -> None:
    array = blosc2.asarray(VALUES, urlpath=str(path))
    for i in range(16):
        array.schunk.vlmeta[f"n{i}"] = i
    with pytest.raises(UnsupportedFrameError, match="16 entries"):
        seal(path)


@pytest.mark.parametrize(
    "name",
    [
        "caterva/cat054d_2d_i2.caterva",
        "caterva/cat060_1d_i4_sparse.caterva",
        "b2nd/shape_0d_i4.b2nd",
        "b2nd/struct_subarray.b2nd",
        "b2nd/zfp_prec.b2nd",
        "special/mostly_nan.b2nd",
        "oldb2nd/pb271_2d_f8_sparse.b2nd",
    ],
)
def test_frames_of_other_writers_are_sealed(path: Path, name: str) -> None:
    source = DATA / name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)
    before = open_b2nd(path)[...]
    metadata = list(open_b2nd(path).vlmeta)
    seal(path)
    result = verify(path)
    assert result.ok
    frame = open_b2nd(path)
    np.testing.assert_array_equal(frame[...], before)
    assert list(frame.vlmeta) == metadata
    for file, start, _ in list(stored_chunks(path).values())[:1]:
        flip(file, start + 20)
        assert len(verify(path).bad) == 1


def test_verify_of_bytes_and_urls(path: Path, tmp_path: Path) -> None:
    write(path, contiguous=True)
    assert verify(path.read_bytes()).ok
    assert verify(f"file://{path}", threads=1).ok
    inside = tmp_path / "inside"
    inside.write_bytes(bytes(100) + path.read_bytes())
    assert verify(inside, offset=100).ok
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "nothing")
    native = tmp_path / "native.b2nd"
    blosc2.asarray(VALUES, urlpath=str(native))
    store = fsspec.filesystem("memory")
    store.pipe({"/sealed.b2nd": path.read_bytes(), "/native.b2nd": native.read_bytes()})
    assert verify("memory://sealed.b2nd").ok
    with pytest.raises(ValueError, match="only frames in local files"):
        seal("memory://native.b2nd")
