"""Statistics in frames: written, changed, added, and void or damaged, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import ChecksumError, CorruptChunkError, open_b2nd, to_b2nd
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.metalayers import STATISTICS_NAME
from b2nd_dask.frame.array import reference_of
from tests.format.test_chunk_statistics import expected, random_elements

SOME_DTYPES = ["<f8", ">f4", "f2", ">i2", "u8", "b1", "c8", ">c16", "M8[s]", ">m8[s]"]
Elements = np.ndarray[Any, Any]


def columns_of(path: Path) -> Any:
    return reference_of(open_b2nd(path)).parsed.statistics


def check(path: Path, values: Elements) -> None:
    """Every chunk's statistics are those of its elements."""
    frame = open_b2nd(path)
    reference, columns = reference_of(frame), columns_of(path)
    assert columns is not None
    assert columns.known.all()
    assert len(columns.known) == frame.nchunks
    for chunk in range(frame.nchunks):
        region = tuple(slice(axis.start, axis.stop) for axis in reference.grid.extent(chunk))
        with np.errstate(all="ignore"):
            wanted = expected(np.asarray(values[region]).reshape(-1))
        assert columns.nans[chunk] == wanted["nans"]
        assert columns.nonzeros[chunk] == wanted["nonzeros"]
        np.testing.assert_allclose(columns.total[chunk], wanted["total"], rtol=1e-12, atol=1e-9)
        if wanted["least"] is not None:
            assert columns.least[chunk] == wanted["least"]
            assert columns.greatest[chunk] == wanted["greatest"]


def entry_of(path: Path) -> Any:
    """The entry as python-blosc2 lists it."""
    array = blosc2.open(str(path))
    return array.schunk.vlmeta[STATISTICS_NAME]


def set_by_blosc2(path: Path, name: str, value: Any) -> None:
    """Set an entry of vlmeta by python-blosc2."""
    array = blosc2.open(str(path), mode="a")
    array.schunk.vlmeta[name] = value


def some(shape: tuple[int, ...], seed: int = 0, dtype: str = "f8") -> Elements:
    values = np.random.default_rng(seed).normal(size=shape) * 100
    return values.astype(dtype)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b2nd"


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_frames_of_many_dtypes(path: Path, dtype: str, contiguous: bool) -> None:
    for seed in range(3):
        values = random_elements(np.dtype(dtype), 23 * 17, seed).reshape(23, 17)
        values[:5, :5] = 0
        values[5:10, :5] = values[6, 3]
        to_b2nd(values, path, mode="w", chunks=(5, 5), stats=True, contiguous=contiguous)
        check(path, values)


def test_special_chunks(path: Path) -> None:
    values = some((40, 25))
    values[:10] = 0
    values[10:20] = np.nan
    values[20:30] = 7
    to_b2nd(values, path, chunks=(10, 10), stats=True)
    kinds = open_b2nd(path).chunk_kinds()
    assert (kinds[0] == 1).all()
    assert 2 in kinds[1]
    check(path, values)
    to_b2nd(da.zeros((100, 7), chunks=(10, 7)), path, mode="w", stats=True)
    check(path, np.zeros((100, 7)))


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1,)])
def test_arrays_of_few_elements(path: Path, shape: tuple[int, ...]) -> None:
    values = np.full(shape, 3.5)
    to_b2nd(values, path, stats=True)
    check(path, values)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.max == (3.5 if values.size else None)


def test_an_empty_frame_keeps_statistics_of_what_is_appended(path: Path) -> None:
    to_b2nd(np.empty((0, 6)), path, chunks=(4, 6), stats=True)
    values = some((10, 6))
    to_b2nd(values[:5], path, mode="r+", append_axis=0)
    to_b2nd(values[5:], path, mode="a", append_axis=0)
    check(path, values)


@pytest.mark.parametrize("contiguous", [True, False])
def test_regions_and_appends_keep_the_others(path: Path, contiguous: bool) -> None:
    values = some((23, 17))
    to_b2nd(values, path, chunks=(5, 5), stats=True, contiguous=contiguous)
    values[3:12, 4:9] = -1e6
    to_b2nd(-1e6, path, mode="r+", region=np.s_[3:12, 4:9])
    check(path, values)
    to_b2nd(values[:, :4], path, mode="r+", append_axis=1)
    values = np.concatenate([values, values[:, :4]], axis=1)
    check(path, values)
    b2nd_dask.compact(path)
    check(path, values)


def test_disjoint_updates_that_were_planned_together(path: Path) -> None:
    values = some((20, 20))
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    writes = [
        to_b2nd(np.full((5, 20), n), path, mode="r+", region=np.s_[n : n + 5], compute=False)
        for n in (0, 10)
    ]
    for n, write in zip((0, 10), writes, strict=True):
        write.compute()
        values[n : n + 5] = n
    check(path, values)


def test_an_update_that_was_planned_before_statistics_were_added(path: Path) -> None:
    values = some((20, 20))
    to_b2nd(values, path, chunks=(5, 5))
    write = to_b2nd(some((5, 20), 7), path, mode="r+", region=np.s_[:5], compute=False)
    assert b2nd_dask.add_stats(path)
    write.compute()
    values[:5] = some((5, 20), 7)
    known = columns_of(path).known
    assert not known[:4].any()
    assert known[4:].all()
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.max is None
    assert stats.chunks.max[1:].max() == values[5:].max()
    assert b2nd_dask.add_stats(path)
    check(path, values)
    assert not b2nd_dask.add_stats(path)


def test_a_frame_without_statistics_gets_none(path: Path) -> None:
    to_b2nd(some((10, 10)), path, chunks=(5, 5))
    to_b2nd(0, path, mode="r+", region=np.s_[:3])
    assert open_b2nd(path).stats is None
    with pytest.raises(ValueError, match="add_stats"):
        to_b2nd(0, path, mode="r+", region=np.s_[:3], stats=True)


def test_parts(path: Path) -> None:
    values = some((20, 10))
    b2nd_dask.create(path, (20, 10), "f8", chunks=(5, 5), stats=True)
    for start in (0, 10):
        region = np.s_[start : start + 5]
        to_b2nd(values[region], path, mode="stage", region=region)
    b2nd_dask.commit(path, fill=2.5)
    values[5:10] = values[15:] = 2.5
    check(path, values)


def test_a_write_that_is_resumed(path: Path) -> None:
    values, computed_blocks, most = some((20, 10)), [], 2

    def limited(block: Elements, block_info: Any = None) -> Elements:
        if len(computed_blocks) == most:
            raise RuntimeError("broken")
        computed_blocks.append(block_info[0]["chunk-location"])
        return block

    x = da.from_array(values, chunks=(5, 10), name="x")
    x = x.map_blocks(limited, dtype="f8", meta=np.empty((0, 0)), name="y")
    with dask.config.set(scheduler="sync"):
        with pytest.raises(RuntimeError):
            to_b2nd(x, path, stats=True, resume=True)
        most = 4
        to_b2nd(x, path, stats=True, resume=True)
    # none was computed twice
    assert len(set(computed_blocks)) == 4
    check(path, values)


@pytest.mark.parametrize("chunks", [(5, 5), (4, 17)])
def test_rechunk_keeps_them(path: Path, tmp_path: Path, chunks: tuple[int, ...]) -> None:
    values = some((23, 17))
    values[:5, :5] = 0
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    b2nd_dask.rechunk(path, tmp_path / "b.b2nd", chunks=chunks)
    check(tmp_path / "b.b2nd", values)
    b2nd_dask.rechunk(path, tmp_path / "c.b2nd", chunks=chunks, stats=False)
    assert open_b2nd(tmp_path / "c.b2nd").stats is None


def test_changes_by_python_blosc2_make_them_void(path: Path) -> None:
    values = some((20, 10))

    def changed(change: Any) -> None:
        to_b2nd(values, path, mode="w", chunks=(5, 5), stats=True, cparams={"clevel": 0})
        change(blosc2.open(str(path), mode="a"))
        assert open_b2nd(path).stats is None

    changed(lambda a: a.__setitem__((0, 0), 1e9))
    changed(lambda a: a.resize((25, 10)))
    changed(lambda a: a.resize((9, 10)))
    # statistics of the state before are not taken up again
    assert b2nd_dask.seal(path)
    assert open_b2nd(path).stats is None
    assert b2nd_dask.add_stats(path)
    check(path, values[:9])


def test_vlmeta_set_by_python_blosc2_leaves_them(path: Path) -> None:
    values = some((20, 10))
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    set_by_blosc2(path, "mine", 5)
    check(path, values)
    assert dict(open_b2nd(path).vlmeta) == {"mine": 5}


def test_a_copied_entry_is_of_no_use(path: Path, tmp_path: Path) -> None:
    values, other = some((20, 10)), tmp_path / "b.b2nd"
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    to_b2nd(values + 1, other, chunks=(5, 5), stats=True)
    set_by_blosc2(path, STATISTICS_NAME, entry_of(other))
    assert open_b2nd(path).stats is None
    assert (open_b2nd(path)[:] == values).all()
    assert b2nd_dask.verify(path).ok
    assert b2nd_dask.add_stats(path)
    check(path, values)


@pytest.mark.parametrize("key", ["columns", "digest", "record", "dtype", "version", None])
def test_an_entry_that_was_changed(path: Path, key: str | None) -> None:
    to_b2nd(some((20, 10)), path, chunks=(5, 5), stats=True)
    entry = entry_of(path)
    if key is None:
        entry = [1, 2]
    elif key == "version":
        entry[key] = 7
    elif key == "dtype":
        entry[key] = ">f8"
    else:
        entry[key] = bytes([entry[key][0] ^ 1]) + entry[key][1:]
    set_by_blosc2(path, STATISTICS_NAME, entry)
    assert open_b2nd(path).stats is None
    found = b2nd_dask.verify(path)
    assert found.ok == (key == "version")
    assert ("statistics are damaged" in str(found)) == (key != "version")


@pytest.mark.parametrize("key", ["columns", "digest", "record", "dtype", "version"])
@pytest.mark.parametrize("value", [None, 5, [1], {"a": 1}, "x"], ids=str)
def test_values_of_other_types(path: Path, key: str, value: Any) -> None:
    values = some((20, 10))
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    set_by_blosc2(path, STATISTICS_NAME, {**entry_of(path), key: value})
    assert open_b2nd(path).stats is None
    assert b2nd_dask.verify(path).ok == (key == "version")
    assert b2nd_dask.from_b2nd(path).max().compute() == values.max()
    assert b2nd_dask.add_stats(path)
    check(path, values)


@pytest.mark.parametrize("part", [complex(0, np.inf), complex(-np.inf, 1), complex(2, 3)], ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_complex_sums_of_one_element(path: Path, part: complex, n: int) -> None:
    values = np.full(n, part)
    to_b2nd(values, path, chunks=(3,), stats=True)
    np.testing.assert_array_equal(open_b2nd(path).stats.sum, values.sum())


def test_bits_that_flip(path: Path) -> None:
    to_b2nd(some((20, 10)), path, chunks=(5, 5), stats=True, vlmeta={"a": 1})
    raw = path.read_bytes()
    before = columns_of(path)
    rng = np.random.default_rng(3)
    start = raw.index(STATISTICS_NAME.encode()) - 100
    entry = reference_of(open_b2nd(path)).parsed.columns.entry
    assert entry is not None
    inside = raw.index(entry)
    bits = [
        *rng.integers(start * 8, len(raw) * 8, 150).tolist(),
        *rng.integers(inside * 8, (inside + len(entry)) * 8, 150).tolist(),
    ]
    kept = 0
    for at in bits:
        flipped = bytearray(raw)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = reference_of(open_b2nd(bytes(flipped), verify=False)).parsed.statistics
        except B2ndError:
            continue
        if found is not None:
            kept += 1
            for name in ("known", "least", "greatest", "total", "nans", "nonzeros"):
                assert (getattr(found, name) == getattr(before, name)).all()
    assert 0 < kept < 150


def test_an_entry_that_unpacks_to_too_much(path: Path) -> None:
    to_b2nd(some((20, 10)), path, chunks=(5, 5), stats=True)
    set_by_blosc2(path, STATISTICS_NAME, {**entry_of(path), "columns": bytes(1 << 26)})
    assert open_b2nd(path).stats is None
    assert not b2nd_dask.verify(path).ok


def test_added_to_what_python_blosc2_wrote(path: Path, tmp_path: Path) -> None:
    values = some((50, 30), dtype=">f4")
    values[:20] = 0
    blosc2.asarray(values, chunks=(20, 10), blocks=(7, 3), urlpath=str(path), mode="w")
    assert b2nd_dask.add_stats(path)
    check(path, values)
    assert b2nd_dask.verify(path).ok
    folder = tmp_path / "sparse"
    blosc2.asarray(values, chunks=(20, 10), urlpath=str(folder), contiguous=False)
    assert b2nd_dask.add_stats(folder)
    check(folder, values)


def test_nothing_is_known_of_what_was_never_written(path: Path) -> None:
    array = blosc2.uninit((20, 10), "f8", chunks=(5, 5), urlpath=str(path), mode="w")
    array[:5] = 1.5
    assert b2nd_dask.add_stats(path)
    assert columns_of(path).known.tolist() == [True, True, *[False] * 6]


def test_damage_is_not_vouched_for(path: Path) -> None:
    to_b2nd(some((20, 10)), path, chunks=(5, 5))
    raw = bytearray(path.read_bytes())
    raw[open_b2nd(path).cbytes // 2] ^= 16
    path.write_bytes(raw)
    with pytest.raises((ChecksumError, CorruptChunkError)):
        b2nd_dask.add_stats(path)
    assert path.read_bytes() == raw


@pytest.mark.parametrize("dtype", ["U3", "S2", [("a", "i4")], "V5"])
def test_dtypes_without(path: Path, dtype: Any) -> None:
    values = np.zeros(5, dtype)
    with pytest.raises(TypeError, match=r"not elements of .*omit stats="):
        to_b2nd(values, path, stats=True)
    to_b2nd(values, path)
    assert open_b2nd(path).stats is None
    assert "statistics" not in open_b2nd(path).info
    with pytest.raises(TypeError, match=r"not elements of [^;]*$"):
        b2nd_dask.add_stats(path)


@pytest.mark.parametrize("stats", ["yes", None, 2])
def test_stats_is_true_or_false(path: Path, stats: Any) -> None:
    with pytest.raises(TypeError, match="give True or False"):
        to_b2nd(some((10,)), path, stats=stats)
    assert not path.exists()


def test_users_do_not_see_the_entry(path: Path, tmp_path: Path) -> None:
    to_b2nd(some((10,)), path, stats=True, vlmeta={"a": 1})
    assert dict(open_b2nd(path).attrs) == {"a": 1}
    array = blosc2.open(str(path))
    listed = dict(array.schunk.vlmeta[:])
    assert STATISTICS_NAME in listed
    to_b2nd(some((10,)), tmp_path / "b.b2nd", vlmeta=listed)
    assert dict(open_b2nd(tmp_path / "b.b2nd").vlmeta) == {"a": 1}
    assert open_b2nd(tmp_path / "b.b2nd").stats is None
    with pytest.raises(ValueError, match="statistics"):
        to_b2nd(some((10,)), tmp_path / "c.b2nd", vlmeta={STATISTICS_NAME: 1})
    many = {f"k{n}": n for n in range(15)}
    with pytest.raises(ValueError, match="statistics"):
        to_b2nd(some((10,)), tmp_path / "c.b2nd", vlmeta=many, stats=True)
    to_b2nd(some((10,)), tmp_path / "c.b2nd", vlmeta=many)


def test_stats_of_the_frame(path: Path) -> None:
    values = some((23, 17))
    values[:7, :7] = np.nan
    to_b2nd(values, path, chunks=(5, 5), stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert (stats.min, stats.max) == (np.nanmin(values), np.nanmax(values))
    assert stats.sum == pytest.approx(np.nansum(values))
    assert stats.mean == pytest.approx(np.nanmean(values))
    assert (stats.nans, stats.nonzeros, stats.size) == (49, values.size, values.size)
    assert stats.chunks.max.shape == (5, 4)
    assert stats.chunks.max.mask[0, 0]
    assert stats.chunks.mean[4, 3] == pytest.approx(values[20:, 15:].mean())
    assert stats.chunks.size[4, 3] == 6
    assert "nans=49" in repr(stats)
    assert open_b2nd(path).info["statistics"] == "of all chunks"
    assert "<td>49</td>" in stats._repr_html_()


def test_stats_of_integers_and_times(path: Path) -> None:
    whole = np.array([2**62, 2**62, 2**62, -5])
    to_b2nd(whole, path, chunks=(1,), stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.sum == whole.sum()
    assert stats.mean == np.float64(sum(whole.tolist()) / 4)
    to_b2nd(whole, path, mode="w", chunks=(4,), stats=True)
    stats = open_b2nd(path).stats
    # the chunk's own sum has wrapped around
    assert stats is not None
    assert stats.mean is None
    assert "mean=unknown" in repr(stats)
    assert stats.chunks.mean.mask.all()
    # the sum is 2**64 + 47, and the product of floats is less than 2**64
    to_b2nd(np.full(49, 376464164769582687, "u8"), path, mode="w", stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.mean is None
    times = np.array(["2020-01-01", "NaT", "2020-01-03"], ">M8[D]")
    to_b2nd(times, path, mode="w", stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.sum is None
    assert "sum=none" in repr(stats)
    assert stats.mean == np.datetime64("2020-01-02")
    assert stats.max == np.datetime64("2020-01-03")
    spans = np.array([-5, 2, -8, 6, 5, 1], "m8[h]")
    to_b2nd(spans, path, mode="w", chunks=(3,), stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.mean == spans.mean()
    np.testing.assert_array_equal(stats.chunks.mean, spans.reshape(2, 3).mean(axis=1))
    to_b2nd(-spans, path, mode="w", stats=True)
    stats = open_b2nd(path).stats
    assert stats is not None
    assert stats.mean == (-spans).mean()


def test_datasets_of_xarray(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray", reason="an extra")
    values = some((6, 5))
    ds = xr.Dataset({"t": (("y", "x"), values), "n": (("y",), np.array(list("abcdef")))})
    to_b2nd(ds, tmp_path / "a.b2d", stats=True)
    check(tmp_path / "a.b2d" / "t.b2nd", values)
    assert open_b2nd(tmp_path / "a.b2d" / "n.b2nd").stats is None
    to_b2nd(ds.t, tmp_path / "t.b2nd", stats=True)
    check(tmp_path / "t.b2nd", values)


def test_what_other_processes_write(path: Path) -> None:
    from distributed import Client, LocalCluster

    values = some((40, 10))
    values[:10] = 0
    address = {"dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **address) as cluster, Client(cluster):
        to_b2nd(da.from_array(values, chunks=(5, 10)), path, stats=True)
    check(path, values)


def test_object_stores() -> None:
    values = some((20, 10))
    to_b2nd(values, "memory://statistics/a.b2nd", chunks=(5, 5), stats=True)
    stats = open_b2nd("memory://statistics/a.b2nd").stats
    assert stats is not None
    assert stats.max == values.max()
