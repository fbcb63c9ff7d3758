"""Every sound vector reads as exactly the bytes that were written."""

from __future__ import annotations

import math
import pickle
import random
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import from_b2nd, open_b2nd
from tests.vectors import digest, packed_digest, raw, rows, same

if TYPE_CHECKING:
    from tests.vectors import Row

# Outcomes of damaged files are all in test_hostile.
SOUND = [row for row in rows("read") if row.scope is None and "error" not in row.also_ok]


def parametrized(chosen: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", chosen, ids=[row.file for row in chosen])


def assert_contents(got: np.ndarray, row: Row) -> None:
    """Compare bytes, and where they differ say where."""
    if row.any_values or digest(raw(got)) == row.sha256:
        return
    want = row.array()
    assert want is not None, "the contents differ, and only their digest is known"
    assert got.dtype.itemsize == want.dtype.itemsize
    different = got.view(f"V{got.dtype.itemsize}") != want.view(f"V{got.dtype.itemsize}")
    where = np.argwhere(different)
    pytest.fail(f"{len(where)} of {want.size} elements differ, the first at {where[:1].tolist()}")


@parametrized(SOUND)
def test_geometry(row: Row) -> None:
    frame = open_b2nd(row.path)
    for name in ("shape", "chunks", "blocks", "dtype"):
        if (wanted := getattr(row, name)) is not None:
            assert getattr(frame, name) == wanted, name
    assert frame.ndim == len(row.shape)
    assert frame.size == math.prod(row.shape)
    assert frame.nbytes == frame.size * frame.dtype.itemsize


@parametrized(SOUND)
def test_frame_reads_exactly(row: Row) -> None:
    got = open_b2nd(row.path)[...]
    assert got.shape == row.shape
    assert_contents(got, row)


@parametrized(SOUND)
def test_dask_array_reads_exactly(row: Row) -> None:
    array = from_b2nd(row.path)
    got = array.compute(scheduler="sync")
    assert array.shape == got.shape == row.shape
    assert array.dtype == got.dtype == row.dtype or row.dtype is None
    assert_contents(np.asarray(got), row)


def selections(row: Row, count: int) -> list[tuple[Any, ...]]:
    """Draw selections of few blocks and of many, the same ones in each run."""
    rng = random.Random(row.file)

    def along(length: int) -> Any:
        if length and rng.random() < 0.3:
            return rng.randrange(-length, length)
        start, step = rng.randrange(length + 1), rng.choice([1, 1, 2, 7, -1, -3])
        stop = start + rng.choice([1, 3, length])
        return slice(stop, start, step) if step < 0 else slice(start, stop, step)

    return [tuple(along(length) for length in row.shape) for _ in range(count)]


@parametrized([row for row in SOUND if row.contents and not row.any_values])
def test_selections_read_exactly(row: Row) -> None:
    frame = open_b2nd(row.path)
    want = row.array().view(frame.dtype)
    for selection in selections(row, 6):
        assert same(frame[selection], want[selection]), selection


@parametrized([row for row in SOUND if row.upstream_reads][::3])
def test_python_blosc2_agrees(row: Row) -> None:
    # One thread: with more, python-blosc2 may decode chunks with the delta filter wrongly.
    upstream = blosc2.open(str(row.path), mode="r", dparams={"nthreads": 1})
    frame = open_b2nd(row.path)
    assert (frame.shape, frame.chunks, frame.blocks) == (
        upstream.shape,
        upstream.chunks,
        upstream.blocks,
    )
    assert frame.cbytes == upstream.schunk.cbytes
    assert frame.dtype == upstream.dtype or not row.stores_dtype
    assert raw(frame[...]) == raw(np.asarray(upstream[...]))


@parametrized([row for row in SOUND if row.vlmeta is not None])
def test_vlmeta(row: Row) -> None:
    frame = open_b2nd(row.path)
    assert {name: packed_digest(frame.vlmeta[name]) for name in frame.vlmeta} == row.vlmeta
    assert {name: packed_digest(frame.attrs[name]) for name in frame.attrs} == row.vlmeta


@parametrized([row for row in SOUND if row.meta is not None])
def test_meta(row: Row) -> None:
    meta = open_b2nd(row.path).meta
    assert {name: packed_digest(meta[name]) for name in row.meta} == row.meta
    assert set(meta) - {"b2nd", "caterva"} == set(row.meta)


@parametrized([row for row in SOUND if row.vlmeta is not None])
def test_vlmeta_has_the_types_of_python_blosc2(row: Row) -> None:
    upstream = blosc2.open(str(row.path), mode="r")
    frame = open_b2nd(row.path)
    for name in upstream.vlmeta:
        assert repr(frame.vlmeta[name]) == repr(upstream.vlmeta[name])


NUMBERS = {1: "u1", 2: ">i2", 4: "<f4", 8: "<M8[s]", 16: "<c16"}
UNTYPED = [row for row in SOUND if not row.stores_dtype]


@parametrized([row for row in UNTYPED if row.dtype.itemsize in NUMBERS])
def test_dtype_for_untyped_items(row: Row) -> None:
    dtype = np.dtype(NUMBERS[row.dtype.itemsize])
    frame = open_b2nd(row.path, dtype=dtype)
    got = frame[...]
    assert frame.dtype == got.dtype == dtype
    assert_contents(got, row)
    assert pickle.loads(pickle.dumps(frame)).dtype == dtype
    lazy = from_b2nd(row.path, dtype=dtype)
    assert lazy.dtype == dtype
    assert_contents(lazy.compute(scheduler="sync"), row)


@parametrized(UNTYPED[::10])
def test_dtype_of_another_size_is_refused(row: Row) -> None:
    with pytest.raises(ValueError, match=r"itemsize|bytes"):
        open_b2nd(row.path, dtype=f"V{row.dtype.itemsize + 1}")


def test_fields_in_any_order_for_untyped_items() -> None:
    row = next(row for row in UNTYPED if row.dtype.itemsize == 8)
    want = open_b2nd(row.path, dtype="f8")[...].tobytes()
    for formats, offsets in (("i4", "i4"), [4, 0]), (("i4", "i8"), [0, 0]):
        dtype = np.dtype({"names": ["a", "b"], "formats": formats, "offsets": offsets})
        got = from_b2nd(row.path, dtype=dtype).compute(scheduler="sync")
        assert (got.dtype, got.tobytes()) == (dtype, want)


def test_a_dtype_of_arrays_is_refused() -> None:
    row = next(row for row in UNTYPED if row.dtype.itemsize == 8)
    with pytest.raises(ValueError, match="one value"):
        open_b2nd(row.path, dtype=("i4", (2,)))


def test_there_are_untyped_and_typed_vectors() -> None:
    assert UNTYPED
    assert len(UNTYPED) < len(SOUND)
