"""Frames of elements too wide for the header of a chunk, as python-blosc2 leaves them in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import FrameFormatError, compact, from_b2nd, open_b2nd, seal, to_b2nd, verify

STRUCT = np.dtype([("a", "S200"), ("b", "<f8", (10,))])
DTYPES: dict[str, Any] = {
    "bytes": "S300",
    "text": "<U250",
    "raw": [("f0", "V256")],
    "struct": STRUCT,
    "very wide": "S70000",
}


def wide(dtype: Any, *shape: int) -> np.ndarray:
    """Make elements with something in each of their parts."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if dtype.kind == "U":
        return np.array([f"{i}" + "é" * (i % 240) for i in range(count)], dtype).reshape(shape)
    raw = np.random.default_rng(4).integers(65, 70, count * dtype.itemsize, "u1")
    return raw.view(dtype).reshape(shape)


def in_memory(values: np.ndarray) -> blosc2.NDArray:
    chunks, blocks = ((4, 5), (2, 3)) if values.ndim == 2 else ((10,), (4,))
    return blosc2.asarray(values, chunks=chunks, blocks=blocks)


def typesize(frame: bytes) -> int:
    """The header's."""
    return int(struct.unpack_from(">i", frame, 48)[0])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(23,), (7, 9)])
def test_they_are_read(dtype: Any, shape: tuple[int, ...]) -> None:
    values = wide(dtype, *shape)
    array = in_memory(values)
    raw = array.to_cframe()
    assert typesize(raw) == 1
    for given in (raw, array, array.copy().to_cframe(), array.slice(...).to_cframe()):
        frame = open_b2nd(given)
        assert (frame.dtype, frame.shape) == (values.dtype, shape)
        np.testing.assert_array_equal(frame[...], values)
        np.testing.assert_array_equal(frame[2:6], values[2:6])
        assert frame[(1,) * values.ndim].tobytes() == values[(1,) * values.ndim].tobytes()
    part = (slice(1, 6),) * values.ndim
    np.testing.assert_array_equal(open_b2nd(array.slice(part))[...], values[part])
    x = from_b2nd(raw)
    np.testing.assert_array_equal(x[3:].compute(scheduler="sync"), values[3:])
    where = tuple([0, n - 1] for n in shape)
    np.testing.assert_array_equal(x.vindex[where].compute(scheduler="sync"), values[where])


@pytest.mark.parametrize("item", [b"", b"A" * 300, b"B" * 299 + b"C"])
def test_chunks_of_one_item(item: bytes) -> None:
    values = np.full(23, item, "S300")
    np.testing.assert_array_equal(open_b2nd(in_memory(values))[...], values)


def test_all_of_an_empty_one() -> None:
    raw = blosc2.asarray(np.empty((0, 3), "S300")).to_cframe()
    assert open_b2nd(raw)[...].shape == (0, 3)
    assert open_b2nd(raw).dtype == "S300"


@pytest.mark.parametrize("sealed", [False, True])
def test_changes_make_them_right(tmp_path: Path, *, sealed: bool) -> None:
    """python-blosc2 cannot read such a frame; after a change it can."""
    path = tmp_path / "a.b2nd"
    values = wide("S300", 23)
    path.write_bytes(in_memory(values).to_cframe())
    if sealed:
        seal(path)
    to_b2nd(np.array([b"new"] * 3, "S300"), path, mode="r+", region=(slice(8, 11),))
    values[8:11] = b"new"
    np.testing.assert_array_equal(open_b2nd(path)[...], values)
    to_b2nd(values[:9], path, mode="a", append_axis=0)
    values = np.append(values, values[:9])
    np.testing.assert_array_equal(open_b2nd(path)[...], values)
    assert verify(path).ok is sealed
    assert typesize(path.read_bytes()) == 300
    np.testing.assert_array_equal(blosc2.open(str(path))[...], values)


def test_they_are_sealed_compacted_and_copied(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.b2nd", tmp_path / "copy.b2nd"
    values = wide("S300", 23)
    # by a writer that was killed: the begin of a chunk
    path.write_bytes(in_memory(values).to_cframe() + b"\5\1left behind")
    seal(path)
    compact(path)
    assert verify(path).ok
    frame = open_b2nd(path, verify=True)
    np.testing.assert_array_equal(frame[...], values)
    to_b2nd(frame, copy, cparams=frame.cparams, chunks=frame.chunks, blocks=frame.blocks)
    np.testing.assert_array_equal(blosc2.open(str(copy))[...], values)


def patched(raw: bytes, at: int, number: int) -> bytes:
    return raw[:at] + struct.pack(">i", number) + raw[at + 4 :]


@pytest.mark.parametrize(
    ("at", "number", "told"),
    [
        (48, 2, "elements of dtype .* the header's typesize is 2"),
        (48, 299, "elements of dtype .* the header's typesize is 299"),
        (53, 1204, "blocksize is 1204"),
        (53, 4, "blocksize is 4"),
        (58, 10, "chunksize is 10"),
        (58, 3300, "chunksize is 3300"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(at: int, number: int, told: str) -> None:
    raw = in_memory(wide("S300", 23)).to_cframe()
    with pytest.raises(FrameFormatError, match=told):
        open_b2nd(patched(raw, at, number))


def test_a_dtype_of_another_width_is_refused() -> None:
    raw = in_memory(wide("S300", 23)).to_cframe()
    with pytest.raises(FrameFormatError, match="make"):
        open_b2nd(raw.replace(b"|S300", b"|S301"))
    # narrow enough for any header: it would say so
    narrow = in_memory(wide("S200", 23)).to_cframe()
    with pytest.raises(FrameFormatError, match="the header's typesize is 1"):
        open_b2nd(patched(narrow, 48, 1))
