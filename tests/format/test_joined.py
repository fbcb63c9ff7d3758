"""Chunks of consecutive blocks joined to one, against the chunk compressed at once."""

from __future__ import annotations

import itertools

import blosc2
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from b2nd_dask.format.chunk.codec import encode_chunk, join_chunks
from b2nd_dask.format.chunk.compression import compression_of
from tests.strategies import examples

RNG = np.random.default_rng(4)
SIZE = 3200
KINDS = {
    "smooth": np.linspace(0, 1, SIZE),
    "zeros in between": np.where(np.arange(SIZE) // 400 % 3 == 1, 0.0, np.arange(SIZE) / 8),
    "runs": np.repeat(RNG.integers(0, 3, 16), 200).astype("f8"),
    "noise in between": np.where(np.arange(SIZE) // 400 % 3 == 1, RNG.random(SIZE), 1.0),
}


@example("zeros in between", "LZ4", ["SHUFFLE"], blosc2.SplitMode.ALWAYS_SPLIT, 1, {1, 2})
@example("zeros in between", "ZSTD", [], blosc2.SplitMode.NEVER_SPLIT, 1, {1, 2})
@examples(60)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    codec=st.sampled_from(["BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD"]),
    filters=st.sampled_from([[], ["SHUFFLE"], ["BITSHUFFLE"], ["SHUFFLE", "BYTEDELTA"]]),
    splitmode=st.sampled_from(list(blosc2.SplitMode)),
    clevel=st.sampled_from([0, 1, 9]),
    # pieces of 400 elements, some of them zeros alone
    cuts=st.sets(st.integers(1, SIZE // 400 - 1)),
)
def test_a_chunk_of_pieces_is_the_chunk(kind, codec, filters, splitmode, clevel, cuts) -> None:
    meta = [8 if name == "BYTEDELTA" else 0 for name in filters]
    how = compression_of(
        {"codec": codec, "clevel": clevel, "filters": filters, "filters_meta": meta,
         "splitmode": splitmode},
        8,
    )  # fmt: skip
    edges = [0, *(400 * cut for cut in sorted(cuts)), SIZE]
    options = {"typesize": 8, "blocksize": 800}
    pieces = [
        encode_chunk(KINDS[kind][start:stop], how, **options)
        for start, stop in itertools.pairwise(edges)
    ]
    joined = join_chunks(pieces)
    if joined is None:
        # one of them did not shrink
        assert any(len(piece) >= 8 * np.diff(edges)[at] for at, piece in enumerate(pieces))
    else:
        assert joined == encode_chunk(KINDS[kind], how, **options)
