"""A record of checksums that python-blosc2 carried into another frame: none, and no damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import ChecksumError, from_b2nd, open_b2nd, seal, to_b2nd, verify
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.metalayers import RECORD_NAME
from tests.frame.sealed import listed_vlmeta, main_file, places
from tests.frame.test_flipped_bits import flip_each

VALUES = np.random.default_rng(8).normal(size=1000).round(2)


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def contiguous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "b.b2nd"


def copy_vlmeta(source: Path, target: Path) -> None:
    """What users do to carry attributes along."""
    old, new = blosc2.open(str(source), mode="r"), blosc2.open(str(target), mode="a")
    for name, value in old.schunk.vlmeta[:].items():
        new.schunk.vlmeta[name] = value


def write(path: Path, values: Any, *, contiguous: bool, chunks: int = 100, level: int = 5) -> None:
    to_b2nd(
        values,
        path,
        chunks=chunks,
        contiguous=contiguous,
        cparams={"clevel": level},
        vlmeta={"units": "K"},
    )


#: Values, chunk length and level of the frame that the record comes from.
SOURCES: dict[str, tuple[np.ndarray, int, int]] = {
    "as many chunks": (VALUES * 2, 100, 5),
    "other dtype": (VALUES.astype("f4"), 100, 5),
    "fewer chunks": (VALUES[:300], 100, 5),
    "more chunks": (VALUES, 10, 5),
    "far more chunks than a record of the frame has room for": (np.arange(20000.0), 4, 5),
    "many chunks of the same bytes": (np.tile(np.arange(2.0), 20000), 2, 0),
    "nothing stored": (np.zeros(1000), 100, 5),
    # of which the index is the same, byte for byte
    "same index": (VALUES * 2, 100, 0),
    "same index, other shape": (VALUES[:996], 100, 0),
}


#: So many that a file for each would take long.
VERY_MANY_CHUNKS = {
    "far more chunks than a record of the frame has room for",
    "many chunks of the same bytes",
}


@pytest.mark.parametrize(
    ("name", "contiguous"),
    [(name, True) for name in SOURCES]
    + [(name, False) for name in SOURCES if name not in VERY_MANY_CHUNKS],
)
def test_a_record_from_another_frame_is_no_damage(
    path: Path, tmp_path: Path, contiguous: bool, name: str
) -> None:
    values, chunks, level = SOURCES[name]
    source = tmp_path / "a.b2nd"
    write(source, values, contiguous=contiguous, chunks=chunks, level=level)
    write(path, VALUES, contiguous=contiguous, level=level)
    copy_vlmeta(source, path)
    assert listed_vlmeta(path)[RECORD_NAME] == listed_vlmeta(source)[RECORD_NAME]
    told = r"b\.b2nd: .*record of checksums.*another frame.*python-blosc2.*b2nd_dask\.seal"
    for opened in (open_b2nd, from_b2nd):
        with pytest.warns(UserWarning, match=told) as caught:
            array = opened(path)
        assert [warning.filename for warning in caught] == [__file__]
        np.testing.assert_array_equal(np.asarray(array), VALUES)
    with pytest.raises(ChecksumError, match=r"no valid checksums: .*another frame.*seal"):
        open_b2nd(path, verify=True)
    result = verify(path)
    assert (result.checksum_state, result.bad, result.ok) == (ChecksumState.STALE, (), False)
    seal(path)
    assert verify(path).ok
    frame = open_b2nd(path, verify=True)
    np.testing.assert_array_equal(frame[...], VALUES)
    assert dict(frame.vlmeta) == {"units": "K"}


@pytest.mark.filterwarnings("ignore:.*another frame:UserWarning")
def test_such_a_frame_is_changed_when_it_has_checksums_again(
    path: Path, tmp_path: Path, contiguous: bool
) -> None:
    source = tmp_path / "a.b2nd"
    write(source, VALUES * 2, contiguous=contiguous)
    write(path, VALUES, contiguous=contiguous)
    copy_vlmeta(source, path)
    with pytest.raises(ChecksumError, match=r"another frame.*seal"):
        to_b2nd(np.ones(5), path, mode="r+", region=slice(3, 8))
    seal(path)
    to_b2nd(np.ones(5), path, mode="r+", region=slice(3, 8))
    expected = np.concatenate([VALUES[:3], np.ones(5), VALUES[8:]])
    np.testing.assert_array_equal(open_b2nd(path, verify=True)[...], expected)
    assert verify(path).checksum_state is ChecksumState.VALID


def test_a_record_in_a_frame_without_checksums(
    path: Path, tmp_path: Path, contiguous: bool
) -> None:
    source = tmp_path / "a.b2nd"
    write(source, VALUES * 2, contiguous=contiguous)
    blosc2.asarray(VALUES, chunks=(100,), urlpath=str(path), contiguous=contiguous)
    copy_vlmeta(source, path)
    np.testing.assert_array_equal(open_b2nd(path)[...], VALUES)
    result = verify(path)
    assert result.checksum_state is ChecksumState.ABSENT
    assert "another frame" in str(result)


def test_an_entry_that_is_not_a_record_is_stale(path: Path) -> None:
    write(path, VALUES, contiguous=True)
    array = blosc2.open(str(path), mode="a")
    array.schunk.vlmeta[RECORD_NAME] = {"version": 1}
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"record of checksums is not.*seal"):
            np.testing.assert_array_equal(open_b2nd(path)[...], VALUES)
        # or without the entry
        if RECORD_NAME in array.schunk.vlmeta:
            del array.schunk.vlmeta[RECORD_NAME]
    seal(path)
    assert verify(path).ok
    open_b2nd(path, verify=True)


def test_a_flipped_bit_of_the_own_record_is_never_silent(path: Path) -> None:
    """Set anew by python-blosc2, which also compresses it: nothing but the stamp holds it."""
    values = np.arange(23.0)
    to_b2nd(values, path, chunks=10, vlmeta={"v": "x"})
    copy_vlmeta(path, path)
    assert verify(path).ok
    record = listed_vlmeta(path)[RECORD_NAME]
    raw = main_file(path).read_bytes()
    _, index_at, _, _ = places(path)
    at = {key: raw.index(record[key], index_at) for key in ("array", "index", "chunks")}
    spans = {key: range(start, start + len(record[key])) for key, start in at.items()}
    found = flip_each(path, values, [range(index_at, len(raw))])
    assert set(found.values()) == {"error", "warning", "same"}
    stamp = range(index_at + 23, index_at + 29)
    for where in (*spans.values(), stamp):
        assert not any(found[at, bit] == "same" for at in where for bit in range(8))
