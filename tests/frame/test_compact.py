"""`compact`: the same frame in less space."""

from pathlib import Path

import blosc2
import numpy as np
import pytest
from click.testing import CliRunner

from b2nd_dask import (
    ChecksumError,
    CorruptChunkError,
    StaleFrameError,
    add_stats,
    compact,
    from_b2nd,
    open_b2nd,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.edges.cli import main
from b2nd_dask.frame import upkeep
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.storage.read.local_reader import LocalReader

VALUES = np.random.default_rng(5).normal(size=(90, 40))
VALUES[30:50] = 0


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.b2nd"


def size(path):
    return sum(p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]))


def updated(target, contiguous):
    """A frame with superseded chunks, and what it holds."""
    to_b2nd(
        VALUES, target, chunks=(20, 20), contiguous=contiguous, vlmeta={"a": [1]}, meta={"m": 2}
    )
    expected = VALUES.copy()
    for i in range(3):
        new = np.random.default_rng(i).normal(size=(50, 40))
        expected[i : 50 + i] = new
        to_b2nd(new, target, mode="r+", region=(slice(i, 50 + i), slice(0, 40)))
    return expected


@pytest.mark.parametrize("contiguous", [True, False])
def test_the_space_of_superseded_chunks_is_given_back(target, contiguous):
    expected = updated(target, contiguous)
    fresh = target.with_name("fresh.b2nd")
    to_b2nd(
        expected, fresh, chunks=(20, 20), contiguous=contiguous, vlmeta={"a": [1]}, meta={"m": 2}
    )
    before = size(target)
    keys = parse_frame(LocalReader(str(target))).keys
    assert compact(target) == before - size(target) > 0
    # all writes stay known, this one also: each takes 24 bytes
    assert parse_frame(LocalReader(str(target))).keys[1:] == keys
    assert len(keys) == 4
    assert size(target) == size(fresh) + 5 * 24 + 32
    frame = open_b2nd(target)
    np.testing.assert_array_equal(frame[...], expected)
    assert frame.vlmeta["a"] == [1]
    assert frame.meta["m"] == 2
    assert verify(target).ok
    assert compact(target) == 0
    assert sorted(target.parent.iterdir()) == [fresh, target]
    # python-blosc2 reads it, and goes on with it
    array = blosc2.open(str(target), mode="a")
    np.testing.assert_array_equal(array[...], expected)
    array[3:50, 11:40] = expected[3:50, 11:40] = -1.0
    array.resize((130, 40))
    expected = np.concatenate([expected, np.zeros((40, 40))])
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)


@pytest.mark.parametrize("contiguous", [True, False])
def test_frames_of_python_blosc2(target, contiguous):
    array = blosc2.asarray(
        VALUES, urlpath=str(target), chunks=(20, 20), blocks=(10, 10), contiguous=contiguous
    )
    array.schunk.delete_chunk(3)
    array.schunk.insert_data(3, np.ones((20, 20)), copy=True)
    del array
    expected = blosc2.open(str(target))[...]
    compact(target)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)


@pytest.mark.parametrize("values", [np.zeros((9, 9)), np.empty((0, 9)), np.array(2.5)])
def test_frames_with_nothing_to_give(target, values):
    to_b2nd(values, target)
    before = target.read_bytes()
    assert compact(target) == 0
    assert target.read_bytes() == before


def test_readers_of_the_old_state(target):
    expected = updated(target, True)
    x, opened = from_b2nd(target), open_b2nd(target)
    np.testing.assert_array_equal(opened[...], expected)
    compact(target)
    with pytest.raises(StaleFrameError):
        x.compute()


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_damaged_chunk_leaves_the_frame(target, contiguous):
    updated(target, contiguous)
    path = target if contiguous else sorted(target.glob("*.chunk"))[-1]
    frame = open_b2nd(target)
    offset = int(reference_of(frame).parsed.index.offsets[0])
    at = reference_of(frame).parsed.header.header_len + offset + 12 if contiguous else 12
    path = target if contiguous else target / f"{offset:08X}.chunk"
    raw = bytearray(path.read_bytes())
    raw[at : at + 4] = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(raw)
    before = {p: p.read_bytes() for p in [path]}
    with pytest.raises(CorruptChunkError) as caught:
        compact(target)
    # the file and the byte that other software can be pointed to
    assert (caught.value.path, caught.value.chunk, caught.value.offset) == (str(path), 0, at)
    assert {p: p.read_bytes() for p in [path]} == before
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("contiguous", [True, False])
def test_damage_is_not_copied_into_a_frame_that_looks_whole(target, contiguous):
    updated(target, contiguous)
    offset = int(reference_of(open_b2nd(target)).parsed.index.offsets[4])
    path = target if contiguous else target / f"{offset:08X}.chunk"
    at = (
        reference_of(open_b2nd(target)).parsed.header.header_len + offset + 50 if contiguous else 50
    )
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ChecksumError, match="chunk 4") as caught:
        compact(target)
    assert (caught.value.path, caught.value.offset) == (str(path), at - 50)
    assert [error.chunk for error in verify(target).bad] == [4]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("rewrite", [compact, seal])
def test_a_missing_chunk_file_is_named(target, rewrite):
    blosc2.asarray(np.arange(60.0), chunks=(20,), urlpath=str(target), contiguous=False)
    lost = target / "00000001.chunk"
    lost.unlink()
    with pytest.raises(FileNotFoundError, match="the file of chunk 1 is missing") as caught:
        rewrite(target)
    assert caught.value.filename == str(lost)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("rewrite", [compact, seal, add_stats])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_frame_that_is_replaced_meanwhile_is_not_called_damaged(
    target, monkeypatch, rewrite, is_before
):
    array = blosc2.asarray(VALUES, chunks=(20, 20), urlpath=str(target), contiguous=False)
    array.schunk.delete_chunk(0)
    array.schunk.insert_data(0, np.ones((20, 20)), copy=True)
    del array
    read = upkeep.stored_extents

    def replaced(opened):
        extents = None if is_before else read(opened)
        to_b2nd(VALUES[:30], target, mode="w", contiguous=False)
        return read(opened) if is_before else extents

    monkeypatch.setattr(upkeep, "stored_extents", replaced)
    with pytest.raises(StaleFrameError, match="changed") as caught:
        rewrite(target)
    assert caught.value.path == str(target)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES[:30])
    assert list(target.parent.iterdir()) == [target]


def test_what_cannot_be_compacted(tmp_path):
    with pytest.raises(ValueError, match="local files"):
        compact("memory://a.b2nd")
    with pytest.raises(FileNotFoundError):
        compact(tmp_path / "nothing.b2nd")


def test_from_the_command_line(target):
    updated(target, True)
    done = CliRunner().invoke(main, ["compact", str(target)])
    assert " freed" in done.output
    assert compact(target) == 0
    assert CliRunner().invoke(main, ["compact", str(Path(__file__))]).exit_code == 1


def test_a_chunk_file_that_is_a_link_to_nothing(target):
    expected = updated(target, contiguous=False)
    (target / "000000FF.chunk").symlink_to("nothing")
    assert compact(target) > 0
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)
    assert not (target / "000000FF.chunk").is_symlink()
