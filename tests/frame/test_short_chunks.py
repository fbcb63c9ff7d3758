"""A chunk that is shorter than its own header says is damage, whatever is read of it, and how."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import numpy as np
import pytest

from b2nd_dask import CorruptChunkError, Frame, compact, from_b2nd, open_b2nd, seal, to_b2nd
from b2nd_dask.frame.array import reference_of
from tests.counting import bytes_read
from tests.frame.sealed import stored_chunks

# chunks so large that a few blocks of one are read alone
VALUES = np.random.default_rng(6).normal(size=(256, 256)).round(1)
CHUNKS, BLOCKS = (128, 128), (32, 32)
#: Behind the first block of chunk 3, where the bytes are lost.
LATER = (slice(200, 250), slice(230, 240))

READS: dict[str, Callable[[Frame], Any]] = {
    "all": lambda frame: frame[...],
    "blocks": lambda frame: frame[LATER],
    "the block before": lambda frame: frame[130:140, 130:140],
    "an element": lambda frame: frame[255, 255],
    "points": lambda frame: reference_of(frame).read_points(
        (np.array([5, 255]), np.array([5, 255]))
    ),
}


def shorten(file: Path, count: int, at: int) -> int:
    """Take some bytes out of a file; return how many it has then."""
    raw = file.read_bytes()
    file.write_bytes(raw[:at] + raw[at + count :])
    return len(raw) - count


@pytest.fixture(params=["ours, plain", "ours, compressed", "other"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "a.b2nd"
    if request.param == "other":
        blosc2.asarray(VALUES, chunks=CHUNKS, blocks=BLOCKS, urlpath=str(target), contiguous=False)
    else:
        to_b2nd(
            VALUES,
            target,
            chunks=CHUNKS,
            blocks=BLOCKS,
            contiguous=False,
            cparams={"clevel": 0 if request.param == "ours, plain" else 5},
        )
    return target


def short_copy(path: Path, count: int = 3) -> tuple[Path, int, int]:
    """Shorten the file of chunk 3 in its middle; return it, its length before and after."""
    file, _, stop = stored_chunks(path)[3]
    return file, stop, shorten(file, count, stop // 2)


@pytest.mark.parametrize("verify", ["auto", True, False])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_short_chunk_file_is_damage(
    path: Path, verify: Any, read: Callable[[Frame], Any]
) -> None:
    if verify is True:
        seal(path)
    file, before, after = short_copy(path)
    with pytest.raises(CorruptChunkError, match="chunk 3") as caught:
        read(open_b2nd(path, verify=verify))
    assert caught.value.path == str(file)
    for length in (before, after):
        assert f"{length} " in str(caught.value)
    # the other chunks are as good as before
    np.testing.assert_array_equal(
        open_b2nd(path, verify=verify)[:128, 100:200], VALUES[:128, 100:200]
    )


@pytest.mark.parametrize("count", [1, 100, 40_000])
def test_graphs_meet_it_too(path: Path, count: int) -> None:
    file, before, _ = short_copy(path, min(count, stored_chunks(path)[3][2] - 40))
    for verify in ("auto", False):
        x = from_b2nd(path, verify=verify)
        for wanted in (x[LATER], x[LATER].sum(), x.vindex[[255, 3], [255, 3]], x.max()):
            with pytest.raises(CorruptChunkError, match=f"{file.name}: chunk 3.*{before} "):
                wanted.compute(scheduler="sync")


@pytest.mark.parametrize("left", [0, 8, 20, 32, 40])
def test_a_file_that_ends_within_the_head(path: Path, left: int) -> None:
    file, _, _ = stored_chunks(path)[3]
    os.truncate(file, left)
    for verify in ("auto", False):
        with pytest.raises(CorruptChunkError, match=rf"{file.name}: chunk 3.*{left} ") as caught:
            open_b2nd(path, verify=verify)[LATER]
        assert caught.value.path == str(file)


@pytest.mark.parametrize("store", ["memory", "file", "http", "s3"])
def test_a_short_object_is_damage(path: Path, store: str, request: pytest.FixtureRequest) -> None:
    _, before, after = short_copy(path)
    name, options = f"short-{uuid.uuid4().hex}.b2nd", None
    members = {f"{name}/{file.name}": file.read_bytes() for file in path.iterdir()}
    if store == "memory":
        fsspec.filesystem("memory").pipe({f"/{member}": raw for member, raw in members.items()})
        url = f"memory://{name}"
    elif store == "file":
        url = f"file://{path}"
    else:
        server = request.getfixturevalue(f"{store}_server")
        options = getattr(server, "storage_options", None)
        for member, raw in members.items():
            server.put(member, raw)
        url = f"{server.url}/{name}"
    for verify in ("auto", False):
        with pytest.raises(CorruptChunkError, match=rf"chunk 3.*{before} .*{after} "):
            open_b2nd(url, verify=verify, storage_options=options)[LATER]


def test_it_is_neither_sealed_nor_compacted_nor_updated(path: Path) -> None:
    _, before, after = short_copy(path)
    main = (path / "chunks.b2frame").read_bytes()
    # space to give back: a file that no chunk uses
    (path / "000000FF.chunk").write_bytes(b"superseded")
    items, region = np.ones((20, 20)), (slice(160, 180), slice(160, 180))
    for change in (
        lambda: compact(path),
        lambda: to_b2nd(items, path, mode="r+", region=region),
    ):
        with pytest.raises(CorruptChunkError, match=rf"chunk 3.*{before} .*{after} "):
            change()
    assert (path / "chunks.b2frame").read_bytes() == main
    blosc2.open(str(path), mode="a")[0, 0] = 1.0
    main = (path / "chunks.b2frame").read_bytes()
    with pytest.raises(CorruptChunkError, match=rf"chunk 3.*{before} .*{after} "):
        seal(path)
    assert (path / "chunks.b2frame").read_bytes() == main


def test_noticing_costs_no_read(tmp_path: Path) -> None:
    """The size of a file comes with opening it: no byte more is read than the blocks need."""
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(1).normal(size=(512, 128))
    to_b2nd(values, path, chunks=(512, 128), blocks=(8, 128), contiguous=False)
    frame = open_b2nd(path, verify=False)
    frame[0, 0]
    count, items = bytes_read(lambda: frame[300:302])
    np.testing.assert_array_equal(items, values[300:302])
    nblocks, block_nbytes = 64, 8 * 128 * 8
    # the places of the blocks with the chunk's header, then one block
    assert count < 32 + 4 * nblocks + block_nbytes + 64
