"""Checksums beside the user's metadata, through updates, and added by `seal`."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from pathlib import Path

import blosc2
import fsspec
import msgpack
import numpy as np
import pytest
import xxhash

from b2nd_dask import (
    B2ndError,
    ChecksumError,
    StaleFrameError,
    UnsupportedFrameError,
    open_b2nd,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.metalayers import RECORD_NAME
from b2nd_dask.format.trailer import build_trailer
from b2nd_dask.frame.read import scan
from tests.frame.sealed import (
    CHUNKS,
    VALUES,
    columns,
    flip,
    listed_vlmeta,
    main_file,
    places,
    stored_chunks,
    write,
)
from tests.vectors import DATA


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b2nd"


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def contiguous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


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
    with pytest.raises(ValueError, match="15 of vlmeta="):
        to_b2nd(VALUES, path, vlmeta=entries)
    del entries["n0"]
    to_b2nd(VALUES, path, vlmeta=entries)
    assert verify(path).ok
    assert len(listed_vlmeta(path)) == 16


def test_updates_keep_the_checksums_of_other_chunks(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    before = columns(path).digests
    assert before is not None
    to_b2nd(np.ones((10, 10)), path, mode="r+", region=(slice(50, 60), slice(20, 30)))
    after = columns(path).digests
    assert after is not None
    assert np.flatnonzero(before != after).tolist() == [9]
    assert verify(path).ok
    to_b2nd(VALUES[:50], path, mode="a", append_axis=0)
    to_b2nd(np.zeros((24, 17)), path, mode="r+", region=(slice(48, 72), slice(0, 17)))
    assert verify(path).ok
    assert open_b2nd(path).shape == (150, 60)


def test_updates_do_not_hide_damage(path: Path, contiguous: bool) -> None:
    """Old elements of a chunk that is rewritten are checked, though few of its blocks are read."""
    values = np.random.default_rng(2).normal(size=(128, 128))
    to_b2nd(values, path, chunks=(128, 128), blocks=(8, 128), contiguous=contiguous)
    file, _, stop = stored_chunks(path)[0]
    flip(file, stop - 1)
    before = main_file(path).read_bytes()
    with pytest.raises(ChecksumError, match="chunk 0"):
        to_b2nd(np.ones((120, 128)), path, mode="r+", region=(slice(8, 128), slice(0, 128)))
    with pytest.raises(ChecksumError, match="chunk 0"):
        to_b2nd(np.ones((10, 128)), path, mode="r+", region=(slice(3, 13), slice(0, 128)))
    assert main_file(path).read_bytes() == before
    assert [error.chunk for error in verify(path).bad] == [0]


def test_updates_do_not_vouch_for_what_others_changed(path: Path, contiguous: bool) -> None:
    write(path, contiguous=contiguous)
    array = blosc2.open(str(path), mode="a")
    array[0, 0] = 5
    del array
    to_b2nd(np.ones((10, 10)), path, mode="r+", region=(slice(50, 60), slice(20, 30)))
    assert verify(path).checksum_state is ChecksumState.ABSENT
    assert list(listed_vlmeta(path)) == ["v"]
    seal(path)
    assert verify(path).ok


def test_empty_arrays_have_nothing_to_check(path: Path, contiguous: bool) -> None:
    native = path.with_name("native.b2nd")
    blosc2.asarray(np.empty((0, 5)), urlpath=str(native), contiguous=contiguous)
    seal(native)
    assert verify(native).ok
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
    with pytest.raises(ChecksumError, match="the frame is damaged"):
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


def test_a_frame_that_cannot_be_sealed_stays(
    path: Path, contiguous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blosc2.asarray(VALUES, chunks=CHUNKS, urlpath=str(path), contiguous=contiguous)
    before = main_file(path).read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            seal(path)
    assert main_file(path).read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["a.b2nd"]
    seal(path)
    assert verify(path).ok


def test_a_frame_that_changes_meanwhile_is_not_sealed(
    path: Path, contiguous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = blosc2.asarray(VALUES, chunks=CHUNKS, urlpath=str(path), contiguous=contiguous)
    digest = scan.chunk_digest

    def digest_and_change(chunk: memoryview) -> int:
        array[3, 3] += 1
        return digest(chunk)

    monkeypatch.setattr(scan, "chunk_digest", digest_and_change)
    with pytest.raises(StaleFrameError):
        seal(path, threads=1)
    assert verify(path).checksum_state is ChecksumState.ABSENT
    np.testing.assert_array_equal(open_b2nd(path)[...], array[...])


def replace_record(path: Path, record: bytes, entry: bytes) -> None:
    raw = bytearray(path.read_bytes())
    _, index_at, trailer_at, _ = places(path)
    raw[index_at + 24 : index_at + 29] = xxhash.xxh3_64_digest(record)[:5]
    covered = build_trailer({RECORD_NAME: entry}, fingerprint=True)[:-16]
    raw[trailer_at:] = covered + xxhash.xxh3_128_digest(covered)
    raw[16:24] = len(raw).to_bytes(8, "big")
    path.write_bytes(raw)


def test_a_record_that_unpacks_to_much_is_not_unpacked(path: Path) -> None:
    write(path, contiguous=True)
    record = msgpack.packb({"version": 1, "chunks": bytes(40 << 20)})
    replace_record(path, record, blosc2.compress2(record, typesize=1))
    tracemalloc.start()
    try:
        assert verify(path, threads=1).checksum_state is ChecksumState.DAMAGED
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"version": 1}),
        msgpack.packb({"version": 1, "array": 2**40, "index": b"", "chunks": b""}),
        msgpack.packb({"version": 1, "array": b"", "index": 5, "chunks": {}}),
        msgpack.packb({"version": 1, "array": "b2nd", "index": b"", "chunks": None}),
        msgpack.packb({"version": 2}),
    ],
)
def test_records_that_are_none(path: Path, record: bytes) -> None:
    """Sealed as docs/integrity.md says, by someone who got the record wrong."""
    write(path, contiguous=True)
    entry = blosc2.compress2(record, typesize=1, clevel=0) if record else b""
    replace_record(path, record, entry)
    newer = b"version\x02" in record
    result = verify(path)
    assert result.checksum_state is (ChecksumState.ABSENT if newer else ChecksumState.DAMAGED)
    np.testing.assert_array_equal(open_b2nd(path, verify=False)[...], VALUES)
