"""`verify=` of reads: what is checked, and when."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import ChecksumError, from_b2nd, open_b2nd, seal, to_b2nd
from tests.frame.sealed import flip, main_file, places, stored_chunks
from tests.vectors import DATA

# chunks so large that a few blocks of one are read alone
VALUES = np.random.default_rng(6).integers(0, 1000, (256, 256)).astype("f8")
CHUNKS, BLOCKS = (128, 128), (32, 32)


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "a.b2nd"
    # stored plain: whatever is flipped decodes without an error
    to_b2nd(
        VALUES,
        target,
        chunks=CHUNKS,
        blocks=BLOCKS,
        contiguous=request.param,
        cparams={"clevel": 0},
    )
    return target


def damage(path: Path, chunk: int = 3) -> np.ndarray:
    """Flip a bit of the last element of a chunk; gives what its elements are then."""
    file, _, stop = stored_chunks(path)[chunk]
    flip(file, stop - 2, 4)
    return np.asarray(open_b2nd(path, verify=False))


def test_damaged_items_are_never_read(path: Path) -> None:
    damaged = damage(path)
    assert np.count_nonzero(damaged != VALUES) == 1
    with pytest.raises(ChecksumError, match="chunk 3: at byte") as caught:
        open_b2nd(path)[...]
    assert str(path) in str(caught.value)
    x = from_b2nd(path)
    with pytest.raises(ChecksumError, match="chunk 3"):
        x.compute()
    with pytest.raises(ChecksumError, match="chunk 3"):
        x.sum().compute()
    with pytest.raises(ChecksumError, match="chunk 3"):
        from_b2nd(path, chunks="auto").mean(axis=0).compute()
    # the others are as good as before
    np.testing.assert_array_equal(x[:128].compute(), VALUES[:128])


def test_true_reads_whole_chunks(path: Path) -> None:
    damaged = damage(path)
    # none of these blocks is damaged
    part = (slice(128, 150), slice(128, 150))
    np.testing.assert_array_equal(open_b2nd(path)[part], VALUES[part])
    for frame in (open_b2nd(path, verify=True), from_b2nd(path, verify=True)):
        with pytest.raises(ChecksumError, match="chunk 3"):
            np.asarray(frame[part])
        np.testing.assert_array_equal(np.asarray(frame[:100, 30:90]), VALUES[:100, 30:90])
        np.testing.assert_array_equal(
            np.asarray(frame[:128:50, ::30][:, :4]), VALUES[:128:50, ::30][:, :4]
        )
    np.testing.assert_array_equal(from_b2nd(path, verify=False).compute(), damaged)
    points = ([3, 130], [5, 140])
    np.testing.assert_array_equal(from_b2nd(path).vindex[points].compute(), VALUES[points])
    with pytest.raises(ChecksumError, match="chunk 3"):
        from_b2nd(path, verify=True).vindex[points].compute()


def test_small_chunks_are_checked_whatever_is_read(tmp_path: Path) -> None:
    """They are read whole in any case."""
    path = tmp_path / "a.b2nd"
    to_b2nd(VALUES, path, chunks=(32, 32), blocks=(8, 8), cparams={"clevel": 0})
    damage(path, 0)
    with pytest.raises(ChecksumError, match="chunk 0"):
        open_b2nd(path)[0, 0]


def test_workers_check_as_the_client_does(path: Path) -> None:
    damage(path)
    for request in ("auto", True):
        frame = pickle.loads(pickle.dumps(open_b2nd(path, verify=request)))
        with pytest.raises(ChecksumError):
            frame[...]
    frame = pickle.loads(pickle.dumps(open_b2nd(path, verify=False)))
    assert np.count_nonzero(frame[...] != VALUES) == 1
    with pytest.raises(ChecksumError, match="chunk 3"):
        from_b2nd(path).sum().compute(scheduler="processes", num_workers=1)


def test_names_of_graphs_tell_the_wish(path: Path) -> None:
    names = {from_b2nd(path, verify=request).name for request in ("auto", True, False)}
    assert len(names) == 3
    assert from_b2nd(path).name == from_b2nd(path, verify="auto").name


def test_damaged_metadata_refuse_to_open(path: Path) -> None:
    _, _, _, end = places(path)
    flip(main_file(path), end - 1)
    for request in ("auto", True):
        with pytest.raises(ChecksumError, match="its trailer does not match the fingerprint"):
            from_b2nd(path, verify=request)
    np.testing.assert_array_equal(open_b2nd(path, verify=False)[...], VALUES)


def test_frames_without_checksums(path: Path, tmp_path: Path) -> None:
    array = blosc2.open(str(path), mode="a")
    array[0, 0] = -1.0
    del array
    expected = VALUES.copy()
    expected[0, 0] = -1.0
    np.testing.assert_array_equal(from_b2nd(path).compute(), expected)
    with pytest.raises(ChecksumError, match=r"other software changed it.*seal"):
        from_b2nd(path, verify=True)
    native = tmp_path / "native.b2nd"
    blosc2.asarray(VALUES, urlpath=str(native))
    with pytest.raises(ChecksumError, match="without checksums"):
        open_b2nd(native, verify=True)
    seal(path)
    np.testing.assert_array_equal(from_b2nd(path, verify=True).compute(), expected)
    damage(path, 1)
    with pytest.raises(ChecksumError, match="chunk 1"):
        from_b2nd(path).compute()


def test_constants_need_no_chunk(tmp_path: Path) -> None:
    path = tmp_path / "zeros.b2nd"
    to_b2nd(da.zeros((1000, 1000), chunks=100), path)
    assert from_b2nd(path, verify=True).sum().compute() == 0
    to_b2nd(np.empty((0, 3)), path, mode="w")
    assert open_b2nd(path, verify=True)[...].shape == (0, 3)


@pytest.mark.parametrize(
    "name",
    [
        "b2nd/zfp_prec.b2nd",
        "b2nd/dict_lz4_1.b2nd",
        "b2nd/codec_zstd_deltashuf.b2nd",
        "caterva/cat060_1d_i4_sparse.caterva",
        "special/mostly_nan.b2nd",
    ],
)
@pytest.mark.parametrize("verify", ["auto", True])
def test_every_kind_of_chunk_is_checked(tmp_path: Path, name: str, verify: Any) -> None:
    path, source = tmp_path / "a.b2nd", DATA / name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)
    before = open_b2nd(path, verify=False)[...]
    seal(path)
    frame = open_b2nd(path, verify=verify)
    np.testing.assert_array_equal(frame[...], before)
    where = (slice(1, None, 3),) * frame.ndim
    np.testing.assert_array_equal(frame[where], before[where])
    file, start, _ = list(stored_chunks(path).values())[-1]
    flip(file, start + 20)
    with pytest.raises(ChecksumError):
        open_b2nd(path, verify=verify)[...]


@pytest.mark.parametrize("verify", ["always", None, 2])
def test_unknown_wishes(path: Path, verify: Any) -> None:
    with pytest.raises(ValueError, match="known are"):
        open_b2nd(path, verify=verify)


@pytest.mark.parametrize("contiguous", [True, False])
def test_chunks_at_the_edge_of_which_all_elements_are_read(
    tmp_path: Path, contiguous: bool
) -> None:
    """What is left of their blocks is padding, which is read for the checksum."""
    path = tmp_path / "a.b2nd"
    values = np.random.default_rng(7).random((7, 100, 200))
    shape = {"chunks": (5, 100, 200), "blocks": (1, 100, 200)}
    to_b2nd(values, path, **shape, contiguous=contiguous, cparams={"clevel": 0})
    for index in (np.s_[:], np.s_[5:], np.s_[:2], np.s_[5:, 3:70]):
        np.testing.assert_array_equal(open_b2nd(path)[index], values[index])
    file, start, _ = stored_chunks(path)[1]
    # in the first of its rows
    flip(file, start + 100, 4)
    x = from_b2nd(path)
    for read in (
        lambda: open_b2nd(path)[...],
        lambda: open_b2nd(path)[5:],
        x.compute,
        x.sum().compute,
    ):
        with pytest.raises(ChecksumError, match="chunk 1"):
            read()
    np.testing.assert_array_equal(open_b2nd(path)[:5], values[:5])
    assert np.count_nonzero(open_b2nd(path, verify=False)[...] != values) == 1


def points_of(index: Any) -> tuple[np.ndarray, ...]:
    """Positions along each axis of what an index selects."""
    return tuple(np.indices(VALUES.shape)[:, *index].reshape(2, -1))


READS = {
    "regions": lambda frame, index: frame[index],
    "regions of dask": lambda frame, index: from_b2nd(frame)[index].compute(),
    "reductions": lambda frame, index: from_b2nd(frame)[index].sum().compute(),
    "points": lambda frame, index: from_b2nd(frame).vindex[points_of(index)].compute(),
    "workers": lambda frame, index: pickle.loads(pickle.dumps(frame))[index],
}

#: Divisions of the array into parts of which none has half of a chunk.
DIVISIONS = {
    "rows": [np.s_[i : i + 32, :] for i in range(0, 256, 32)],
    "columns": [np.s_[:, i : i + 50] for i in range(0, 256, 50)],
    "strides": [np.s_[i::4, j::2] for i in range(4) for j in range(2)],
    "windows": [
        np.s_[i : i + 60, j : j + 90] for i in range(0, 256, 60) for j in range(0, 256, 90)
    ],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("division", DIVISIONS)
def test_one_of_the_parts_of_a_chunk_verifies_it(path: Path, read: str, division: str) -> None:
    damage(path)
    frame, failed = open_b2nd(path), []
    for index in DIVISIONS[division]:
        try:
            READS[read](frame, index)
        except ChecksumError as error:
            failed.append(error.chunk)
    # parts that are decoded from all blocks are verified, too
    assert failed == [3] or (set(failed) == {3} and division == "strides")
