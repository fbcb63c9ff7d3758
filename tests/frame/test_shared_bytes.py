"""Frames whose index names the same bytes for several chunks: small files, unbounded work."""

import shutil
import struct

import blosc2
import numpy as np
import pytest

from b2nd_dask import CorruptChunkError, FrameFormatError, compact, open_b2nd, seal
from b2nd_dask.format.chunk.codec import encode_repeated
from b2nd_dask.format.index import build_index
from b2nd_dask.format.trailer import build_trailer
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.storage.read.local_reader import LocalReader

ITEMS = 5000


def with_index(path, main, index):
    """Put another index into a frame without checksums."""
    header = parse_frame(LocalReader(str(path))).header
    raw = main.read_bytes()
    end = header.header_len + (0 if header.sparse else header.cbytes)
    tail = index + build_trailer({})
    head = bytearray(raw[:end])
    struct.pack_into(">Q", head, 16, len(head) + len(tail))
    main.write_bytes(bytes(head) + tail)


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def frame(request, tmp_path):
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).integers(0, 255, ITEMS * 6, np.uint8)
    blosc2.asarray(
        values, urlpath=str(path), chunks=(ITEMS,), blocks=(500,), contiguous=request.param
    )
    return path


def main_of(path):
    return path / "chunks.b2frame" if path.is_dir() else path


@pytest.mark.parametrize("act", [compact, seal])
def test_chunks_that_share_bytes_are_neither_copied_nor_sealed(frame, act):
    offsets = parse_frame(LocalReader(str(frame))).index.offsets.copy()
    offsets[4] = offsets[1]
    with_index(frame, main_of(frame), build_index(offsets))
    before = main_of(frame).read_bytes()
    with pytest.raises(CorruptChunkError, match="shares bytes with chunk 4") as caught:
        act(frame)
    assert caught.value.chunk == 1
    assert str(frame) in str(caught.value)
    assert main_of(frame).read_bytes() == before
    assert list(frame.parent.iterdir()) == [frame]


@pytest.mark.parametrize("act", [compact, seal])
def test_chunks_that_overlap(tmp_path, act):
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(0).integers(0, 255, ITEMS * 6, np.uint8)
    blosc2.asarray(values, urlpath=str(path), chunks=(ITEMS,), blocks=(500,))
    raw = bytearray(path.read_bytes())
    parsed = parse_frame(LocalReader(str(path)))
    at = parsed.header.header_len + int(parsed.index.offsets[2])
    # bytes 12 to 15 of a chunk are its length (docs/format.md, Chunk header)
    (nbytes,) = struct.unpack_from("<i", raw, at + 12)
    struct.pack_into("<i", raw, at + 12, nbytes + 1)
    path.write_bytes(raw)
    with pytest.raises(CorruptChunkError, match="shares bytes with chunk 3"):
        act(path)


def test_one_stored_place_for_all_chunks_is_no_index(frame):
    repeated = encode_repeated(struct.pack("<q", 0), nbytes=8 * 6, blocksize=8 * 6)
    with_index(frame, main_of(frame), repeated)
    with pytest.raises(FrameFormatError, match="all 6 chunks at one offset"):
        open_b2nd(frame)


def test_one_chunk_may_be_written_as_a_repeated_value(tmp_path):
    path = tmp_path / "a.b2nd"
    values = np.arange(100)
    blosc2.asarray(values, urlpath=str(path), chunks=(100,), blocks=(50,))
    with_index(path, path, encode_repeated(struct.pack("<q", 0), nbytes=8, blocksize=8))
    np.testing.assert_array_equal(open_b2nd(path)[...], values)
    shutil.copy(path, tmp_path / "b.b2nd")
    seal(path)
    compact(path)
    np.testing.assert_array_equal(open_b2nd(path)[...], values)
