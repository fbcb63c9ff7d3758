"""Chunks that no scratch buffer of a thread holds are compressed and decoded box by box."""

from __future__ import annotations

import itertools
from unittest import mock

import blosc2
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask.errors import ChecksumError
from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.frame.read import fetch
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES, scratch
from b2nd_dask.frame.read.plan import Part, RegionPlan
from b2nd_dask.frame.read.reduction import PRODUCTS, Reduction, Total
from b2nd_dask.frame.write import writer
from b2nd_dask.graph.write import write_tasks
from tests.strategies import examples

SHAPE, CHUNKS = (4400, 2048), (4200, 2048)


@pytest.fixture(scope="module")
def elements():
    values = np.add.outer(np.arange(SHAPE[0]), np.sin(np.arange(SHAPE[1]) / 50).round(3))
    values[1000:1500] = 0
    return values


@pytest.fixture(scope="module", params=[True, False], ids=["contiguous", "sparse"])
def path(request, elements, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.b2nd"
    assert np.prod(CHUNKS) * 8 > MAX_SCRATCH_NBYTES
    b2nd_dask.to_b2nd(
        da.from_array(elements, chunks=CHUNKS), path, chunks=CHUNKS, contiguous=request.param
    )
    return path


def test_elements_are_those_that_were_written(elements, path) -> None:
    np.testing.assert_array_equal(blosc2.open(str(path))[...], elements)
    np.testing.assert_array_equal(b2nd_dask.from_b2nd(path).compute(), elements)
    np.testing.assert_array_equal(b2nd_dask.open_b2nd(path, threads=2)[...], elements)
    assert b2nd_dask.verify(path).ok


@pytest.mark.parametrize("key", [np.s_[::3, 5:], np.s_[:4100, ::-1], np.s_[4199], np.s_[:, :700]])
def test_selections(elements, path, key) -> None:
    np.testing.assert_array_equal(b2nd_dask.from_b2nd(path)[key].compute(), elements[key])


def test_reductions(elements, path) -> None:
    x = b2nd_dask.from_b2nd(path)
    np.testing.assert_allclose(x.mean(axis=0).compute(), elements.mean(axis=0))
    np.testing.assert_allclose((x * 2).sum(axis=1).compute(), elements.sum(axis=1) * 2)
    assert x.max().compute() == elements.max()
    # what a thread keeps of it
    assert sum(one.nbytes for one in scratch.kept) <= MAX_SCRATCH_NBYTES


def test_one_of_the_chunks_repeats_an_element(tmp_path) -> None:
    """It is no box beside chunks that are read in some."""
    values = np.full((CHUNKS[0], 2 * CHUNKS[1]), 5.0)
    values[:, : CHUNKS[1]] = np.random.default_rng(0).integers(0, 9, CHUNKS)
    path = tmp_path / "repeated.b2nd"
    b2nd_dask.to_b2nd(da.from_array(values, chunks=CHUNKS), path, chunks=CHUNKS)
    x = b2nd_dask.from_b2nd(path, chunks=-1)
    np.testing.assert_array_equal(x.sum(axis=1).compute(), values.sum(axis=1))
    np.testing.assert_array_equal(x.max(axis=0).compute(), values.max(axis=0))
    np.testing.assert_array_equal(x.compute(), values)


@pytest.mark.parametrize("blocks", [(70, 256), (70, 2048)], ids=["moved", "in stored order"])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_chunk_is_that_of_python_blosc2(elements, tmp_path, monkeypatch, blocks, threads) -> None:
    """Written in boxes, by several threads too, it has the bytes of one compressed at once."""
    monkeypatch.setattr(write_tasks, "_threads_of_a_task", lambda _: threads)
    pool = mock.Mock(wraps=writer.ThreadPoolExecutor)
    monkeypatch.setattr(writer, "ThreadPoolExecutor", pool)
    cparams = {"codec": blosc2.Codec.LZ4, "clevel": 5, "filters": [blosc2.Filter.SHUFFLE]}
    options = {"chunks": CHUNKS, "blocks": blocks, "cparams": cparams}
    b2nd_dask.to_b2nd(da.from_array(elements, chunks=CHUNKS), tmp_path / "ours.b2nd", **options)
    cparams = blosc2.CParams(**cparams, nthreads=1)
    blosc2.asarray(
        elements, urlpath=str(tmp_path / "theirs.b2nd"), **options | {"cparams": cparams}
    )
    opened = [blosc2.open(str(tmp_path / f"{name}.b2nd")) for name in ("ours", "theirs")]
    ours, theirs = (array.schunk.get_chunk(0) for array in opened)
    assert ours == theirs
    assert pool.called == (threads > 1)


def test_one_task_has_the_threads_that_others_leave(monkeypatch) -> None:
    monkeypatch.setattr(write_tasks, "usable_cores", lambda: 8)
    monkeypatch.setattr(write_tasks, "available", lambda: mock.Mock(threads=6))

    def blocks(count, chunk_nbytes):
        grid = Grid((chunk_nbytes * count,), (chunk_nbytes,), (chunk_nbytes,), 1)
        return mock.Mock(keys=[None] * count, **{"job.transaction.plan.grid": grid})

    large, small = 1 << 27, 1 << 20
    assert write_tasks._threads_of_a_task([blocks(1, large)]) == 6
    assert write_tasks._threads_of_a_task([blocks(2, large), blocks(1, small)]) == 2
    assert write_tasks._threads_of_a_task([blocks(20, large)]) == 1
    assert write_tasks._threads_of_a_task([blocks(1, small)]) == 1


def test_errors_of_threads_are_raised(elements, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(write_tasks, "_threads_of_a_task", lambda _: 3)
    encode = writer.encode_chunk
    calls = itertools.count()

    def failing(*args, **kwargs):
        if next(calls) == 2:
            raise MemoryError("one of the boxes")
        return encode(*args, **kwargs)

    monkeypatch.setattr(writer, "encode_chunk", failing)
    with pytest.raises(MemoryError, match="one of the boxes"):
        b2nd_dask.to_b2nd(elements[: CHUNKS[0]], tmp_path / "x.b2nd", chunks=CHUNKS)
    assert not list(tmp_path.iterdir())


def test_chunks_that_do_not_shrink(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(write_tasks, "_threads_of_a_task", lambda _: 3)
    values = np.random.default_rng(0).integers(0, 256, (CHUNKS[0], CHUNKS[1] * 8), "u1")
    values[: CHUNKS[0] // 2] = 1
    b2nd_dask.to_b2nd(values, tmp_path / "x.b2nd", chunks=values.shape, blocks=(300, 4096))
    np.testing.assert_array_equal(b2nd_dask.open_b2nd(tmp_path / "x.b2nd")[...], values)


@pytest.mark.parametrize("verify", [True, None])
def test_a_chunk_is_verified_once(path, monkeypatch, verify) -> None:
    """One of its boxes verifies all of it."""
    seen = []
    monkeypatch.setattr(
        fetch, "verify_in_pieces", lambda opened, request: seen.append(request.chunk)
    )
    monkeypatch.setattr(fetch, "verify_chunk", lambda opened, chunk, _: seen.append(chunk))
    options = {} if verify is None else {"verify": verify}
    b2nd_dask.open_b2nd(path, threads=1, **options)[...]
    assert sorted(seen) == [0, 1]


def test_damage_shows(elements, tmp_path) -> None:
    path = tmp_path / "damaged.b2nd"
    b2nd_dask.to_b2nd(da.from_array(elements, chunks=CHUNKS), path, chunks=CHUNKS)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match="chunk"):
        b2nd_dask.from_b2nd(path).sum().compute()


@examples(200)
@given(data=st.data(), ndim=st.integers(1, 3))
def test_boxes_of_a_part_are_all_of_it(data, ndim) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 12)] * ndim))
    blocks = tuple(data.draw(st.integers(1, n)) for n in shape)
    grid = Grid(shape, shape, blocks, 1)
    inner = tuple(
        range(n)[data.draw(st.integers(0, n - 1)) :: data.draw(st.integers(1, 5))] for n in shape
    )
    out = tuple(slice(3, 3 + len(along)) for along in inner)
    elements = np.arange(np.prod(shape)).reshape(shape)
    found = np.full([3 + len(along) for along in inner], -1)
    for piece in Part(0, inner, out).in_boxes(grid, data.draw(st.integers(1, 80))):
        assert (found[piece.out] == -1).all()
        found[piece.out] = elements[np.ix_(*piece.inner)]
    np.testing.assert_array_equal(found[out], elements[np.ix_(*inner)])


def test_boxes_of_different_sizes_are_reduced_in_any_order() -> None:
    """A large chunk is divided beside one that is not: rows of the result have been seen or not."""
    values = np.random.default_rng(0).integers(0, 9, (6, 8))
    cells = AxisCells(range(6), 6), AxisCells(range(8), 4)
    plan = RegionPlan(cells, np.arange(2), np.zeros(2, "u1"), ())
    boxes = [(slice(0, 3), slice(0, 4)), (slice(0, 6), slice(4, 8)), (slice(3, 6), slice(0, 4))]
    for order in itertools.permutations(boxes):
        how = Reduction((1,), PRODUCTS, lambda each: {"": each.prod(axis=1, keepdims=True)})
        total = Total(plan, how)
        for box in order:
            total.add_elements(values[box] + 1, box)
        expected = (values + 1).prod(axis=1, keepdims=True)
        np.testing.assert_array_equal(total.fields[""], expected)
