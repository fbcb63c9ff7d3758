"""Frames that python-blosc2 writes, drawn at random, read as what NumPy holds."""

from __future__ import annotations

import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from blosc2 import Codec
from dask.array.core import normalize_chunks
from hypothesis import assume, given
from hypothesis import strategies as st

from b2nd_dask import UninitializedChunkError, from_b2nd, open_b2nd
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from tests.forked import run_forked
from tests.strategies import (
    SEEDS,
    Case,
    SpecialCase,
    Values,
    cases,
    dask_chunks,
    examples,
    indices,
    special_cases,
)
from tests.vectors import same

# Hypothesis may spend five minutes on making a failing example small.
pytestmark = pytest.mark.timeout(1800)

SELECTIONS = 6


def computed(lazy: da.Array) -> np.ndarray:
    """Compute a dask array, and make sure that it is what the array had said."""
    got = np.asarray(lazy.compute(scheduler="sync"))
    assert (got.shape, got.dtype) == (lazy.shape, lazy.dtype)
    return got


@examples(25)
@given(case=cases())
def test_whole(case: Case, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    frame = open_b2nd(path)
    assert (frame.shape, frame.ndim) == (case.array.shape, case.array.ndim)
    assert (frame.chunks, frame.blocks) == (case.chunks, case.blocks)
    values.assert_read(frame[...])
    values.assert_read(frame[()], ())
    values.assert_read(np.asarray(frame))
    if frame.ndim:
        assert len(frame) == len(case.array)


@examples(25)
@given(case=cases(), data=st.data())
def test_selections(case: Case, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    frame = open_b2nd(path)
    for _ in range(SELECTIONS):
        index = data.draw(indices(frame.shape))
        values.assert_read(frame[index], index)


@pytest.mark.parametrize("start", ["zeros", "full", "nans", "uninit"])
@examples(15)
@given(data=st.data())
def test_constants(start: str, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values, kinds = data.draw(special_cases(start)).write(path)
    frame = open_b2nd(path)
    assert frame.chunk_kinds().dtype == np.uint8
    assert frame.chunk_kinds().tolist() == kinds.tolist()
    values.assert_read(frame[...])
    # blocks of the graph that cover chunks of several kinds too
    for chunks in (None, data.draw(dask_chunks(frame.shape))):
        values.assert_read(computed(from_b2nd(path, chunks=chunks)))
    for _ in range(SELECTIONS):
        index = data.draw(indices(frame.shape))
        values.assert_read(frame[index], index)


@examples(20)
@given(
    grid=st.lists(st.integers(1, 6), min_size=1, max_size=2).map(tuple),
    chunk=st.integers(1, 3),
    cut=st.integers(0, 2),
    seed=SEEDS,
    data=st.data(),
)
def test_constants_among_chunks(
    grid: tuple[int, ...],
    chunk: int,
    cut: int,
    seed: int,
    data: st.DataObject,
    fresh_path: Callable[[], Path],
) -> None:
    # each chunk is either zeros, which the offset index tells, or ones, which are stored
    stored = np.random.default_rng(seed).integers(0, 2, grid, "i2")
    array = np.kron(stored, np.ones((chunk,) * len(grid), "i2"))
    array = array[: array.shape[0] - min(cut, chunk - 1)]
    path = fresh_path()
    sizes = {"chunks": (chunk,) * len(grid), "blocks": (1,) * len(grid)}
    frame = blosc2.zeros(array.shape, dtype="i2", urlpath=str(path), **sizes)
    for place in np.argwhere(stored):
        frame[tuple(slice(n * chunk, (n + 1) * chunk) for n in place)] = 1
    assert open_b2nd(path).chunk_kinds().tolist() == (1 - stored).tolist()
    lazy = from_b2nd(path, chunks=data.draw(dask_chunks(array.shape)))
    assert same(computed(lazy), array)


def never_written(case: SpecialCase, kinds: np.ndarray) -> np.ndarray:
    """Mark the elements of chunks that were never written."""
    for axis, (length, chunk) in enumerate(zip(case.shape, case.chunks, strict=True)):
        kinds = np.repeat(kinds, chunk, axis).take(range(length), axis)
    return kinds == ChunkKind.UNINIT


@examples(25)
@given(case=special_cases("uninit"), filler=st.binary(min_size=1, max_size=1))
def test_chunks_never_written(
    case: SpecialCase, filler: bytes, fresh_path: Callable[[], Path]
) -> None:
    path = fresh_path()
    _, kinds = case.write(path)
    never = never_written(case, kinds)
    assume(never.any())
    got = open_b2nd(path)[...]
    assert not any(got[never].tobytes())
    if case.dtype.kind in "iuf":
        uninit = np.frombuffer(filler * case.dtype.itemsize, case.dtype)[0]
        want = np.where(never, uninit, got).astype(case.dtype)
        frame = open_b2nd(path, uninit=uninit)
        Values(want).assert_read(frame[...])
        Values(want).assert_read(pickle.loads(pickle.dumps(frame))[...])
        Values(want).assert_read(computed(from_b2nd(path, uninit=uninit)))
    with pytest.raises(UninitializedChunkError, match=r"\.b2nd"):
        open_b2nd(path, uninit="raise")[...]
    with pytest.raises(UninitializedChunkError):
        from_b2nd(path, uninit="raise").compute(scheduler="sync")


def test_the_first_chunk_of_a_read_that_was_never_written_is_named(fresh_path) -> None:
    """Also if no chunk of the frame was, which its index says by one value."""
    path = fresh_path()
    blosc2.uninit((100,), dtype="f8", chunks=(10,), blocks=(10,), urlpath=str(path))
    for read in (
        lambda: open_b2nd(path, uninit="raise")[35:70],
        lambda: from_b2nd(path, uninit="raise", chunks=100)[35:70].sum().compute(),
    ):
        with pytest.raises(UninitializedChunkError) as caught:
            read()
        assert caught.value.chunk == 3


@examples(25)
@given(case=cases(), data=st.data())
def test_dask_chunks(case: Case, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    chunks = data.draw(dask_chunks(case.array.shape))
    lazy = from_b2nd(path, chunks=chunks)
    assert lazy.chunks == normalize_chunks(chunks, case.array.shape, dtype=values.array.dtype)
    assert lazy.dtype == values.array.dtype
    values.assert_read(computed(lazy))
    # dask's slicing is the reference: it departs from NumPy's for x[-n - 1 :: -1]
    reference = da.from_array(values.array, chunks=lazy.chunks)
    index = data.draw(indices(case.array.shape))
    got, want = (np.asarray(x[index].compute(scheduler="sync")) for x in (lazy, reference))
    # single elements may come as scalars, which are of native byte order
    assert same(got.astype(lazy.dtype), want.astype(lazy.dtype))


@examples(20)
@given(case=cases(), auto=st.booleans())
def test_dask_chunks_of_the_frame(case: Case, auto: bool, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    lazy = from_b2nd(path, chunks="auto" if auto else None)
    for sizes, length, chunk in zip(lazy.chunks, case.array.shape, case.chunks, strict=True):
        assert sum(sizes) == length
        edges = np.cumsum(sizes)[:-1]
        assert not (edges % chunk).any()
        # an empty array has no chunks of its own, and is one block
        assert auto or 0 in lazy.shape or len(sizes) == -(-length // chunk)
    values.assert_read(computed(lazy))


@examples(20)
@given(case=cases(contiguous=True), before=st.binary(min_size=1), after=st.binary())
def test_at_an_offset(
    case: Case, before: bytes, after: bytes, fresh_path: Callable[[], Path]
) -> None:
    path = fresh_path()
    values = case.write(path)
    path.write_bytes(before + path.read_bytes() + after)
    frame = open_b2nd(path, offset=len(before))
    values.assert_read(frame[...])
    values.assert_read(pickle.loads(pickle.dumps(frame))[...])
    values.assert_read(computed(from_b2nd(path, offset=len(before))))


@examples(20)
@given(case=cases(contiguous=True), data=st.data())
def test_from_bytes(case: Case, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    content = path.read_bytes()
    path.unlink()
    frame = open_b2nd(content)
    values.assert_read(frame[...])
    index = data.draw(indices(frame.shape))
    values.assert_read(frame[index], index)
    values.assert_read(pickle.loads(pickle.dumps(frame))[index], index)
    values.assert_read(computed(from_b2nd(content)))


@examples(20)
@given(case=cases(), data=st.data())
def test_wrong_indices(case: Case, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    case.write(path)
    frame = open_b2nd(path)
    with pytest.raises(IndexError):
        frame[(0,) * (frame.ndim + 1)]
    for wrong in [(..., ...), [0], np.array([True]), True, np.bool_(True), 0.0, "a"]:
        with pytest.raises(IndexError):
            frame[wrong]
    for axis, length in enumerate(frame.shape):
        place = data.draw(st.sampled_from([length, length + 5, -length - 1]))
        with pytest.raises(IndexError):
            frame[(slice(None),) * axis + (place,)]


@examples(20)
@given(case=cases(), data=st.data())
def test_pickled(case: Case, data: st.DataObject, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    values = case.write(path)
    frame = open_b2nd(path)
    copy = pickle.loads(pickle.dumps(frame))
    assert (copy.shape, copy.dtype, copy.chunks) == (frame.shape, frame.dtype, frame.chunks)
    index = data.draw(indices(frame.shape))
    values.assert_read(copy[index], index)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.LZ4HC, Codec.ZSTD])
def test_incompressible_with_a_dictionary(codec: Codec, fresh_path: Callable[[], Path]) -> None:
    # C-Blosc2 3.3.5 marks such chunks as having a dictionary although they are stored as they are,
    # and then cannot decode them itself.
    array = np.random.default_rng(0).integers(0, 2**63, (40, 30))
    cparams = {"codec": codec, "clevel": 5, "use_dict": True}
    path = fresh_path()
    stored = blosc2.asarray(
        array, urlpath=str(path), chunks=(40, 30), blocks=(10, 30), cparams=cparams
    )
    flags, special = (stored.schunk.get_chunk(0)[place] for place in (2, 31))
    assert flags & 0x02, "not stored as it is"
    assert special & 0x01, "not marked as having a dictionary"
    frame = open_b2nd(path)
    assert same(frame[...], array)
    assert same(frame[13:15, 7], array[13:15, 7])


def read_with_few_files(paths: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    x = da.concatenate([from_b2nd(path) for path in paths])
    assert x.sum().compute() == 4 * sum(range(len(paths)))
    assert (x.compute() == np.repeat(np.arange(len(paths)), 4)).all()
    frames = [open_b2nd(path) for path in paths]
    assert [frame[0] for frame in frames] == list(range(len(paths)))


def test_more_frames_than_a_process_may_have_files(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{number}.b2nd" for number in range(110)]
    for number, path in enumerate(paths):
        blosc2.asarray(np.full(4, number), urlpath=path)
    run_forked(read_with_few_files, paths)
