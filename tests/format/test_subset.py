"""Some blocks of a chunk as a chunk of their own, against the whole chunk decoded."""

from __future__ import annotations

import struct

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.chunk.chunk_header import head_nbytes, parse_chunk_header
from b2nd_dask.format.chunk.codec import BlockSubsets, encode_repeated, subsets_of
from tests.format.by_hand import changed
from tests.strategies import examples

RNG = np.random.default_rng(3)
KINDS = {
    "smooth": np.linspace(0, 1, 4000),
    "noise": RNG.random(4000),
    "runs": np.repeat(RNG.integers(0, 3, 20), 200).astype("f8"),
}
FILTERS = [[], ["SHUFFLE"], ["BITSHUFFLE"], ["TRUNC_PREC", "SHUFFLE"], ["SHUFFLE", "BYTEDELTA"]]


def subset_of(raw: bytes, blocks: list[int]) -> BlockSubsets | None:
    header = parse_chunk_header(raw, 1 << 30)
    return subsets_of([raw], [header.cbytes], header, np.array(blocks))


def assembled(raw: bytes, blocks: list[int]) -> bytes:
    subset = subset_of(raw, blocks)
    assert subset is not None
    (head,), (header,), (spans,) = subset.heads, subset.headers, subset.spans.tolist()
    chunk = head + b"".join(raw[a:b] for a, b in spans)
    # what a parser reads of it differs from the header of the chunk in its lengths alone
    lengths = {"nbytes": header.nbytes, "cbytes": header.cbytes}
    assert parse_chunk_header(chunk) == header == parse_chunk_header(raw)._replace(**lengths)
    return chunk


@examples(40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    codec=st.sampled_from(list(blosc2.Codec)[:5]),
    filters=st.sampled_from(FILTERS),
    splitmode=st.sampled_from(list(blosc2.SplitMode)),
    clevel=st.sampled_from([0, 1, 9]),
    nblocks=st.sampled_from([1, 2, 5, 20]),
    data=st.data(),
)
def test_blocks_are_those_of_the_chunk(
    kind, codec, filters, splitmode, clevel, nblocks, data
) -> None:
    size = 32000 // nblocks
    named = [blosc2.Filter[name] for name in filters]
    metas = [20 if name == "TRUNC_PREC" else 8 if name == "BYTEDELTA" else 0 for name in filters]
    raw = blosc2.compress2(
        KINDS[kind], typesize=8, blocksize=size, codec=codec, clevel=clevel, splitmode=splitmode,
        filters=named, filters_meta=metas,
    )  # fmt: skip
    whole = blosc2.decompress2(raw)
    blocks = data.draw(st.sets(st.integers(0, nblocks - 1), min_size=1).map(sorted))
    expected = b"".join(whole[b * size : (b + 1) * size] for b in blocks)
    assert blosc2.decompress2(assembled(raw, blocks)) == expected


def test_ends_of_blocks_are_found_without_order() -> None:
    # two blocks of one stream each, the second first; all bytes put together by hand
    streams = [struct.pack("<i", 8) + b"firstblk", struct.pack("<i", 8) + b"secondbl"]
    head = struct.pack("<BBBBiii", 5, 1, 0x15, 1, 16, 8, 64) + bytes(16)
    raw = head + struct.pack("<ii", 52, 40) + streams[1] + streams[0]
    assert blosc2.decompress2(raw) == b"firstblksecondbl"
    for blocks, spans in [([0], [[52, 64]]), ([1], [[40, 52]]), ([0, 1], [[52, 64], [40, 52]])]:
        subset = subset_of(raw, blocks)
        assert subset.spans.tolist() == [spans]
        assert len(subset.heads[0]) == head_nbytes(len(blocks)) == 32 + 4 * len(blocks)
    assert blosc2.decompress2(assembled(raw, [1])) == b"secondbl"


TEXTS = np.array([b"some text that comes again and again, %d" % i for i in range(5000)])
ZSTD = {"codec": blosc2.Codec.ZSTD, "typesize": 8, "blocksize": 8000}


@pytest.mark.parametrize(
    "raw",
    [
        blosc2.compress2(np.zeros(4000), **ZSTD),
        encode_repeated(b"12345678", nbytes=32000, blocksize=8000),
        blosc2.compress2(TEXTS, use_dict=True, **ZSTD | {"typesize": 1}),
        blosc2.compress2(KINDS["smooth"], filters=[blosc2.Filter.DELTA], **ZSTD),
        # a short last block
        blosc2.compress2(KINDS["smooth"][:3500], **ZSTD),
    ],
    ids=["special", "repeated", "dictionary", "delta", "short block"],
)
def test_chunks_that_are_decoded_as_a_whole(raw: bytes) -> None:
    assert subset_of(raw, [1]) is None


RAW = blosc2.compress2(KINDS["smooth"], **ZSTD)


@pytest.mark.parametrize("offset", [-1, 0, 32 + 16 - 1, len(RAW) - 3, len(RAW) + 1, 2**31 - 1])
def test_offsets_that_cannot_be(offset: int) -> None:
    raw = changed(RAW, 32 + 4 * 2, struct.pack("<i", offset))
    assert subset_of(raw, [0]) is None


def test_two_blocks_of_one_stream() -> None:
    raw = changed(RAW, 32 + 4 * 2, RAW[32 + 4 : 32 + 8])
    assert subset_of(raw, [0]) is None


def test_fewer_bytes_than_offsets() -> None:
    assert subset_of(RAW[: head_nbytes(4)], [3]) is not None
    assert subset_of(RAW[: head_nbytes(4) - 1], [3]) is None


CHUNKS = [
    blosc2.compress2(values, **ZSTD)
    for values in (KINDS["smooth"], KINDS["runs"], np.sqrt(KINDS["smooth"]))
]


def alike(chunks: list[bytes], blocks: list[int], more: int = 0) -> BlockSubsets | None:
    first = parse_chunk_header(chunks[0])
    return subsets_of(chunks, [len(c) + more for c in chunks], first, np.array(blocks))


@examples(20)
@given(st.sets(st.integers(0, 3), min_size=1).map(sorted), st.permutations(CHUNKS), st.data())
def test_chunks_that_are_alike_at_once(blocks, chunks, data) -> None:
    # streams in another order than their offsets
    order = data.draw(st.permutations(range(4)))
    chunks = [reordered(chunks[0], order), *chunks[1:]]
    found = alike(chunks, blocks)
    alone = [subset_of(raw, blocks) for raw in chunks]
    assert found.heads == [head for one in alone for head in one.heads]
    assert found.spans.tolist() == [spans for one in alone for spans in one.spans.tolist()]
    lengths = [(header.nbytes, header.cbytes) for one in alone for header in one.headers]
    assert [(header.nbytes, header.cbytes) for header in found.headers] == lengths
    assert found.whole_cbytes == list(map(len, chunks))


def reordered(raw: bytes, order: list[int]) -> bytes:
    offsets = struct.unpack_from("<4i", raw, 32)
    ends = sorted([*offsets, len(raw)])
    streams = [raw[at : ends[ends.index(at) + 1]] for at in offsets]
    at, placed = head_nbytes(4), [0] * 4
    for block in order:
        placed[block] = at
        at += len(streams[block])
    body = b"".join(streams[block] for block in order)
    return raw[:32] + struct.pack("<4i", *placed) + body


@pytest.mark.parametrize("offset", [-1, 0, 32 + 16 - 1, len(CHUNKS[1]) - 3, 2**31 - 1])
def test_one_of_them_with_an_offset_that_cannot_be(offset: int) -> None:
    raw = changed(CHUNKS[1], 32 + 4 * 2, struct.pack("<i", offset))
    assert alike([CHUNKS[0], CHUNKS[1]], [0]) is not None
    assert alike([CHUNKS[0], raw], [0]) is None


@pytest.mark.parametrize("at", [*range(12), *range(16, 32)])
def test_headers_that_differ_are_not_alike(at: int) -> None:
    raw = changed(CHUNKS[1], at, bytes([CHUNKS[1][at] ^ 1]))
    assert alike([CHUNKS[0], raw], [0]) is None


PLAIN = [blosc2.compress2(RNG.random(4000), clevel=0, **ZSTD) for _ in range(3)]


def test_plain_chunks_at_once() -> None:
    found = alike(PLAIN, [0, 3])
    assert found.spans.tolist() == [[[32, 8032], [24032, 32032]]] * 3
    assert [len(head) for head in found.heads] == [32] * 3
    assert alike([PLAIN[0], changed(PLAIN[1], 12, struct.pack("<i", 32000))], [0]) is None


def test_one_of_them_that_is_too_long_or_has_a_stream_twice() -> None:
    assert alike([CHUNKS[0], CHUNKS[1]], [0], more=-1) is None
    of_one_stream = changed(CHUNKS[1], 32 + 4 * 2, CHUNKS[1][32 + 4 : 32 + 8])
    assert alike([CHUNKS[0], of_one_stream], [0]) is None
