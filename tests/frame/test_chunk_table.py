"""What is known of all chunks equals what python-blosc2 says of each."""

from __future__ import annotations

from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest

from b2nd_dask import open_b2nd, to_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    values = np.random.default_rng(3).integers(0, 9, (40, 60)).astype("f8")
    values[:10] = 0
    values[10:20, :30] = np.nan
    values[10:20, 30:45] = 7.5
    values[30:, 30:] = np.random.default_rng(4).normal(size=(10, 30))
    target = tmp_path / "x.b2nd"
    to_b2nd(values, target, chunks=(10, 15), blocks=(5, 15), contiguous=request.param)
    return target


def table(path: Path | str, most: int | None = None) -> ChunkTable:
    return chunk_table(reference_of(open_b2nd(path, verify=False)), most)


def test_kinds_and_sizes_are_those_of_python_blosc2(path: Path) -> None:
    found, array = table(path), blosc2.open(str(path))
    special = [info.special.value for info in array.schunk.iterchunks_info()]
    np.testing.assert_array_equal(found.kinds.reshape(-1), special)
    assert found.counts == {code: special.count(code) for code in set(special)}
    sizes = [len(array.schunk.get_chunk(int(chunk))) for chunk in found.stored]
    np.testing.assert_array_equal(found.nbytes, sizes)
    assert found.is_exact
    names = [found.codec_names[number] for number in found.codecs]
    # noise does not compress
    plain = [size == 32 + 10 * 15 * 8 for size in sizes]
    value = special[int(found.stored[0])] == 3
    assert value
    expected = ["stored as is" if p else "zstd" for p in plain[1:]]
    assert names == ["one value", *expected]
    assert 0 < sum(plain) < len(plain)


def test_too_many_headers_are_not_read(path: Path) -> None:
    exact, found = table(path), table(path, most=3)
    assert not found.is_exact
    np.testing.assert_array_equal(found.stored, exact.stored)
    if path.is_dir():
        assert not len(found.nbytes)
    else:
        # nothing lies between the chunks
        np.testing.assert_array_equal(found.nbytes, exact.nbytes)
        assert 3 not in found.counts


def test_headers_of_a_store_are_not_read(path: Path) -> None:
    store, name = fsspec.filesystem("memory"), f"/table/{path.is_dir()}.b2nd"
    for file in path.iterdir() if path.is_dir() else [path]:
        store.pipe(f"{name}/{file.name}" if path.is_dir() else name, file.read_bytes())
    found = table(f"memory:/{name}")
    assert not found.is_exact
    assert bool(len(found.nbytes)) != path.is_dir()
    frame = open_b2nd(f"memory:/{name}")
    assert "stored 10" in frame._repr_html_()
    assert ("chunk sizes" in frame.info) != path.is_dir()


def test_a_damaged_chunk_is_one_that_cannot_be_read(path: Path) -> None:
    found = table(path)
    file = sorted(path.glob("*.chunk"))[2] if path.is_dir() else path
    raw = bytearray(file.read_bytes())
    header_len = reference_of(open_b2nd(path)).parsed.header.header_len
    start = 0 if path.is_dir() else header_len + int(found.nbytes[:2].sum())
    raw[start + 12 : start + 16] = b"\xff" * 4
    file.write_bytes(raw)
    damaged = table(path)
    names = [damaged.codec_names[number] for number in damaged.codecs]
    assert names.count("unreadable") == 1
    assert len(names) == len(found.stored)


def test_no_stored_chunk(tmp_path: Path) -> None:
    to_b2nd(np.zeros((4, 4)), tmp_path / "z.b2nd", chunks=(2, 2))
    found = table(tmp_path / "z.b2nd")
    assert found.counts == {1: 4}
    assert found.is_exact
    empty = table(blosc2.asarray(np.zeros((0, 3))))
    assert empty.counts == {}
