"""Updates compress as the header of a frame requires, or raise and leave the frame unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import (
    CorruptChunkError,
    UnsupportedFrameError,
    add_stats,
    compact,
    open_b2nd,
    seal,
    to_b2nd,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_filter_with_a_negative_parameter(fresh_path: Callable[[], Path]) -> None:
    values = np.arange(600, dtype="i4").reshape(20, 30)
    how = {"filters": [blosc2.Filter.INT_TRUNC, blosc2.Filter.SHUFFLE], "filters_meta": [-4, 0]}
    path = fresh_path()
    grid = {"chunks": (7, 9), "blocks": (3, 4), "cparams": how}
    blosc2.asarray(values, urlpath=str(path), **grid)
    values[:4] = values[:4] * 3 + 1
    to_b2nd(values[:4], path, mode="r+", region=(slice(0, 4), slice(0, 30)))
    # python-blosc2 writes such frames, but does not open them
    assert (open_b2nd(path)[...] == blosc2.asarray(values, **grid)[...]).all()


DAMAGE = {"level 15": (27, 0xF5), "a codec of another package": (27, 0x56)}


@pytest.mark.parametrize("name", DAMAGE)
def test_parameters_that_cannot_be(name: str, fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    blosc2.asarray(np.arange(100), urlpath=str(path), chunks=(50,), blocks=(10,))
    frame = bytearray(path.read_bytes())
    at, value = DAMAGE[name]
    frame[at], frame[77] = value, 37
    path.write_bytes(frame)
    with pytest.raises(UnsupportedFrameError, match="python-blosc2"):
        to_b2nd(np.arange(9), path, mode="r+", region=(slice(3, 12),))
    assert path.read_bytes() == frame
    assert (open_b2nd(path)[...] == np.arange(100)).all()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "seal": seal,
    "add_stats": add_stats,
    "compact": compact,
    "region": lambda path: to_b2nd(da.zeros(10), path, mode="r+", region=(slice(0, 10),)),
    "append": lambda path: to_b2nd(da.zeros(10), path, mode="r+", append_axis=0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", ["frame", "archive", "byte", "zeros"])
def test_bytes_behind_a_frame_are_kept(tmp_path: Path, change: str, what: str) -> None:
    path = tmp_path / "two.b2nd"
    one = blosc2.asarray(np.arange(100.0), chunks=(10,), blocks=(10,)).to_cframe()
    behind = {"frame": one, "archive": b"PK\3\4", "byte": b"x", "zeros": bytes(600) + one}[what]
    path.write_bytes(one + behind)
    with pytest.raises(FileExistsError, match=rf"at byte {len(one)} of this file.*two\.b2nd"):
        CHANGES[change](path)
    assert path.read_bytes() == one + behind
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("change", CHANGES)
def test_zeros_behind_a_frame_are_no_bytes_of_others(tmp_path: Path, change: str) -> None:
    """A power cut may leave the length of an interrupted change, and none of its bytes."""
    path, same = tmp_path / "zeros.b2nd", tmp_path / "same.b2nd"
    for each in (path, same):
        blosc2.asarray(np.arange(100.0), urlpath=str(each), chunks=(10,), blocks=(10,))
    path.write_bytes(path.read_bytes() + bytes((1 << 20) + 600))
    for each in (path, same):
        CHANGES[change](each)
    assert (open_b2nd(path)[...] == open_b2nd(same)[...]).all()
    # compact had nothing else to do
    assert path.stat().st_size == same.stat().st_size


def test_a_missing_chunk_stays_missing_in_an_update_of_others(
    fresh_path: Callable[[], Path],
) -> None:
    path = fresh_path()
    blosc2.asarray(np.arange(40), urlpath=str(path), chunks=(10,), contiguous=False)
    lost = path / "00000000.chunk"
    whole = lost.read_bytes()
    lost.unlink()
    to_b2nd(np.arange(90, 100), path, mode="r+", region=(slice(20, 30),))
    expected = np.r_[:20, 90:100, 30:40]
    assert (open_b2nd(path)[10:] == expected[10:]).all()
    with pytest.raises(CorruptChunkError, match="missing"):
        open_b2nd(path)[:10]
    lost.write_bytes(whole)
    assert (open_b2nd(path)[...] == expected).all()
