"""Any one flipped bit around the chunks of a sealed frame: found, told of, or harmless."""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

from b2nd_dask import (
    B2ndError,
    ChecksumError,
    FrameFormatError,
    from_b2nd,
    open_b2nd,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.array import reference_of
from tests.frame.sealed import flip, listed_vlmeta, main_file, places, stored_chunks

STRUCT = np.dtype([("a", "<i4"), ("b", "<f8", (2,))])
ARRAYS: dict[str, tuple[np.ndarray, Any, Any]] = {
    "1-D": (np.arange(23.0), 10, 4),
    "2-D": (np.arange(60 * 50).reshape(60, 50), (32, 20), (8, 10)),
    "text": (np.array([f"w{i}" for i in range(23)], "<U5"), 10, 4),
    "struct": (np.arange(23 * 20, dtype="u1").view(STRUCT), 10, 4),
    "0-d": (np.array(5, "<i2"), (), ()),
}


def store(path: Path, name: str, *, contiguous: bool) -> np.ndarray:
    values, chunks, blocks = ARRAYS[name]
    to_b2nd(
        values,
        path,
        chunks=chunks,
        blocks=blocks,
        contiguous=contiguous,
        meta={"m": 1},
        vlmeta={"v": "x"},
    )
    assert verify(path).ok
    return values


def outcome(path: Path, values: np.ndarray) -> str:
    """What a reader meets who takes no special care."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            frame = open_b2nd(path)
            items = frame[...]
        except (B2ndError, OSError):
            return "error"
    if any(re.search("resized|another frame", str(warning.message)) for warning in told):
        return "warning"
    same = items.dtype == values.dtype and items.shape == values.shape
    if not same or not (items == values).all():
        return "WRONG"
    return "same" if reference_of(frame).parsed.columns.checksums.is_valid else "UNVERIFIED"


def flip_each(path: Path, values: np.ndarray, spans: list[range]) -> dict[tuple[int, int], str]:
    """The outcome for each bit of some bytes, flipped alone."""
    file = main_file(path)
    kept = file.read_bytes()
    found = {}
    fd = os.open(file, os.O_WRONLY)
    try:
        for at in (at for span in spans for at in span):
            for bit in range(8):
                os.pwrite(fd, bytes([kept[at] ^ 1 << bit]), at)
                found[at, bit] = outcome(path, values)
            os.pwrite(fd, kept[at : at + 1], at)
    finally:
        os.close(fd)
    return found


#: Each array, and each pair of the others, at least once: array, contiguous, changed.
OFTEN_TRIED = {
    ("1-D", True, False),
    ("2-D", False, True),
    ("text", False, False),
    ("struct", True, True),
    ("0-d", True, False),
}


@pytest.mark.parametrize(
    ("name", "contiguous", "changed"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in OFTEN_TRIED else pytest.mark.long)
        for case in itertools.product(ARRAYS, (True, False), (False, True))
    ],
)
def test_every_bit_around_the_chunks(
    tmp_path: Path, name: str, contiguous: bool, changed: bool
) -> None:
    path = tmp_path / "a.b2nd"
    values = store(path, name, contiguous=contiguous)
    if changed:
        # leaves no fingerprint of the trailer
        array = blosc2.open(str(path), mode="a")
        array.schunk.vlmeta["w"] = [1, 2]
        del array
        assert verify(path).ok
    header_len, index_at, _, frame_len = places(path)
    found = flip_each(path, values, [range(header_len), range(index_at, frame_len)])
    assert set(found.values()) <= {"error", "warning", "same"}, {
        where: what for where, what in found.items() if what.isupper()
    }
    # what is not found is what settings for compression, thread counts and the user's metadata are
    counts = Counter(found.values())
    # without a fingerprint a damaged record is told like one of another frame
    found_by_an_error = counts["error"] + (counts["warning"] if changed else 0)
    assert found_by_an_error > counts["same"] + (0 if changed else counts["warning"])


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "sparse"])
@pytest.mark.parametrize("name", ARRAYS)
def test_some_bits_around_the_chunks(tmp_path: Path, name: str, contiguous: bool) -> None:
    """Markers, the version and the array's metalayer: where damage used to pass."""
    path = tmp_path / "a.b2nd"
    values = store(path, name, contiguous=contiguous)
    array_meta = listed_vlmeta(path)["b2nd.xxh3"]["array"]
    start = main_file(path).read_bytes().index(array_meta)
    spans = [range(25, 26), range(57, 58), range(68, 71), range(86, 96)]
    found = flip_each(path, values, [*spans, range(start - 5, start + len(array_meta))])
    assert set(found.values()) <= {"error", "warning"}
    # the shape's own integers, as long as no chunk comes or goes
    ndim = values.ndim
    told = {at for (at, _), what in found.items() if what == "warning"}
    assert told <= set(range(start + 4, start + 4 + 9 * ndim))
    assert bool(told) == bool(ndim)


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "a.b2nd"
    store(target, "2-D", contiguous=request.param)
    return target


VALUES = ARRAYS["2-D"][0]


def damaged_shape(path: Path) -> np.ndarray:
    """Flip bit 2 of the first length: 60 becomes 56."""
    at = main_file(path).read_bytes().index(b"\x92\xd3" + (60).to_bytes(8, "big"))
    flip(main_file(path), at + 9, 2)
    return VALUES[:56]


def resized(path: Path) -> np.ndarray:
    array = blosc2.open(str(path), mode="a")
    array.resize((56, 50))
    del array
    return VALUES[:56]


@pytest.mark.parametrize("change", [damaged_shape, resized])
def test_another_shape_is_read_with_a_warning(path: Path, change: Any) -> None:
    left = change(path)
    told = r"a\.b2nd: its shape is \(56, 50\).* shape \(60, 50\).*seal.*verify=True"
    for opened in (open_b2nd, from_b2nd):
        with pytest.warns(UserWarning, match=told) as caught:
            array = opened(path)
        # once, and where the user opened it
        assert [warning.filename for warning in caught] == [__file__]
        np.testing.assert_array_equal(np.asarray(array), left)
    np.testing.assert_array_equal(open_b2nd(path, verify=False)[...], left)
    for opened in (open_b2nd, from_b2nd):
        with pytest.raises(ChecksumError, match=r"\(56, 50\).*\(60, 50\).*seal"):
            opened(path, verify=True)
    result = verify(path)
    assert result.checksum_state is ChecksumState.STALE
    assert not result.ok
    assert result.bad == ()
    # once the user has said that the shape is right
    seal(path)
    np.testing.assert_array_equal(open_b2nd(path, verify=True)[...], left)


@pytest.mark.parametrize("change", [damaged_shape, resized])
def test_chunks_of_another_shape_are_checked_nevertheless(path: Path, change: Any) -> None:
    change(path)
    file, start, _ = stored_chunks(path)[1]
    flip(file, start + 40)
    with pytest.warns(UserWarning, match="resized"):
        frame = open_b2nd(path)
    with pytest.raises(ChecksumError, match="chunk 1"):
        frame[...]
    result = verify(path)
    assert [error.chunk for error in result.bad] == [1]
    assert "damaged: 1 of" in str(result)


@pytest.mark.parametrize("change", [damaged_shape, resized])
def test_updates_do_not_vouch_for_another_shape(path: Path, change: Any) -> None:
    left = change(path).copy()
    rows = np.ones((2, 50), int)
    for where in ({"mode": "r+", "region": slice(0, 2)}, {"mode": "a", "append_axis": 0}):
        with pytest.raises(ChecksumError, match=r"\(56, 50\).*\(60, 50\).*seal"):
            to_b2nd(rows, path, **where)
    seal(path)
    to_b2nd(rows, path, mode="r+", region=slice(0, 2))
    left[:2] = 1
    np.testing.assert_array_equal(open_b2nd(path, verify=True)[...], left)


def test_the_header_that_was_damaged_is_told(path: Path) -> None:
    flip(main_file(path), 25)
    with pytest.raises(ChecksumError, match="byte 25 of its header"):
        open_b2nd(path)
    np.testing.assert_array_equal(open_b2nd(path, verify=False)[...], VALUES)


def test_a_header_that_nobody_writes_is_not_sealed(tmp_path: Path) -> None:
    """Sealed, it would count as damaged from then on."""
    path = tmp_path / "a.b2nd"
    blosc2.asarray(VALUES, urlpath=str(path))
    flip(path, 25, 1)
    before = path.read_bytes()
    with pytest.raises(FrameFormatError, match=r"at byte 25: .* the frame was not changed"):
        seal(path)
    assert path.read_bytes() == before


def test_settings_may_change(path: Path) -> None:
    """What is set for later changes says nothing of the chunks that are there."""
    array = blosc2.open(str(path), mode="a")
    array.schunk.cparams = blosc2.CParams(
        codec=blosc2.Codec.LZ4,
        clevel=9,
        filters=[blosc2.Filter.BITSHUFFLE],
        nthreads=3,
        typesize=8,
        blocksize=640,
    )
    array.schunk.dparams = blosc2.DParams(nthreads=3)
    array.schunk.vlmeta["later"] = 1
    array.schunk.meta["m"] = 3
    del array
    assert verify(path).ok
    assert open_b2nd(path).meta["m"] == 3
