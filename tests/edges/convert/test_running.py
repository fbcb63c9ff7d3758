"""How conversions run: memory, checks, progress, processes that are killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import convert, to_b2nd
from tests.edges.convert.samples import RNG, names
from tests.forked import answer, started
from tests.peak import peak_growth

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")


def test_memory_that_is_too_little() -> None:
    zarr.create_array("a.zarr", shape=(1000, 1000), chunks=(1000, 1000), dtype="f8")
    with pytest.raises(ValueError, match="give 32000000 or more"):
        convert("a.zarr", "a.b2nd", max_mem="1MB")
    convert("a.zarr", "a.b2nd", max_mem="64MB")


def test_chunks_of_a_new_frame_fit_into_the_memory() -> None:
    np.save("a.npy", RNG.random((1000, 1000)))
    convert("a.npy", "a.b2nd", max_mem="1MB")
    frame = b2nd_dask.open_b2nd("a.b2nd")
    assert np.prod(frame.chunks) * 8 * 4 <= 1e6


def test_check_sees_what_was_written_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    from b2nd_dask.edges.convert.shared import Copier

    copy = Copier.copy

    def one_wrong(copier: Any, member: Any, target: Any) -> None:
        copy(copier, member, target)
        target[3, 2] += 1

    monkeypatch.setattr(Copier, "copy", one_wrong)
    zarr.create_array("a.zarr", data=RNG.random((6, 5)))
    with pytest.raises(ValueError, match="differ"):
        convert("a.zarr", "a.npy", check=True)
    assert names(Path()) == {"a.zarr"}


@pytest.mark.parametrize(
    ("target", "frame"), [("a.b2nd", "a.b2nd"), ("a.b2d", "a.b2d/x.b2nd"), ("a.b2z", "a.b2z/x")]
)
@pytest.mark.parametrize("at", [0, -1])
def test_check_of_a_damaged_frame_names_the_target(
    monkeypatch: pytest.MonkeyPatch, target: str, frame: str, at: int
) -> None:
    from b2nd_dask.edges.convert import frames

    def damaged(array: Any, path: Path, **how: Any) -> None:
        to_b2nd(array, path, **how)
        raw = path.read_bytes()
        # its magic, or its last chunk
        found = 4 if at == 0 else raw.index(np.float64(1599).tobytes())
        path.write_bytes(raw[:found] + bytes([raw[found] ^ 1]) + raw[found + 1 :])

    monkeypatch.setattr(frames, "to_b2nd", damaged)
    with h5py.File("src.h5", "w") as file:
        file["x"] = np.arange(1600.0)
    with pytest.raises(b2nd_dask.B2ndError) as raised:
        convert("src.h5", target, check=True, cparams={"clevel": 0})
    assert raised.value.path == str(Path(frame).absolute())
    assert names(Path()) == {"src.h5"}


@pytest.mark.parametrize("target", ["a.h5", "a.nc", "a.zarr", "a.npy", "a.npz"])
@pytest.mark.parametrize("at", [0, -1])
def test_check_of_another_damaged_format_names_the_target(
    monkeypatch: pytest.MonkeyPatch, target: str, at: int
) -> None:
    from b2nd_dask.edges.convert import convert as module

    def damaging(*given: Any) -> Any:
        def write(ready: Path) -> None:
            written(ready)
            # of zarr: the metadata of the array, or its chunk
            inner = {0: "values/zarr.json", -1: "values/c/0"} if ready.is_dir() else {}
            path = ready / inner.get(at, "")
            raw = path.read_bytes()
            # the signature of the file, or some of its elements
            found = 0 if at == 0 else len(raw) // 2
            path.write_bytes(raw[:found] + bytes(64) + raw[found + 64 :])

        written = writer_of(*given)
        return write

    writer_of = module._writer_of
    monkeypatch.setattr(module, "_writer_of", damaging)
    np.save("src.npy", RNG.random(1600))
    with pytest.raises(Exception, match=rf"{Path.cwd()}/{target}") as raised:
        convert("src.npy", target, check=True)
    assert ".staging" not in str(raised.value)
    assert names(Path()) == {"src.npy"}


def test_check_reads_each_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, read = 80, []
    zarr.create_array("a.zarr", data=RNG.random((400, 800)), chunks=(400, 800 // chunks))
    get = zarr.storage.LocalStore.get

    async def counted(store: Any, key: str, *args: Any, **keywords: Any) -> Any:
        if "c/" in key:
            read.append(key)
        return await get(store, key, *args, **keywords)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", counted)
    convert("a.zarr", "a.h5", max_mem="1MB", check=True)
    # once for the copy, once for the check
    assert len(read) == 2 * chunks


def test_check_of_npz_from_npz() -> None:
    np.savez("a.npz", x=np.arange(4), y=np.arange(5))
    convert("a.npz", "b.npz", check=True)
    with np.load("b.npz") as found:
        assert {name: found[name].tolist() for name in found} == {
            "x": [0, 1, 2, 3],
            "y": [0, 1, 2, 3, 4],
        }


def test_check_of_an_array_without_its_coordinates() -> None:
    xr = pytest.importorskip("xarray", reason="of the extra convert")
    array = xr.DataArray(RNG.random((2, 3)), {"x": [1, 2, 3]}, ("y", "x"))
    to_b2nd(array, "a.b2nd")
    with pytest.warns(UserWarning, match="the coordinates x"):
        convert("a.b2nd", "a.npy", check=True)
    np.testing.assert_array_equal(np.load("a.npy"), array)
    place = xr.Dataset(coords={"v": ("y", [1, 2]), "w": ("z", [1, 2, 3])})
    to_b2nd(xr.Dataset({"u": ("y", [1.0, 2.0])}, place.coords), "d.b2d")
    with pytest.warns(UserWarning, match=r"d\.b2nd cannot hold: the coordinates w$"):
        convert("d.b2d", "d.b2nd", check=True)
    with pytest.raises(ValueError, match="blocks= is for b2nd, b2d, b2z, not for npy"):
        convert("a.b2nd", "b.npy", blocks=2)


def test_progress_reaches_the_end() -> None:
    np.save("x.npy", RNG.random((3000, 1000)))
    for target in ("x.b2nd", "x.zarr", "x.h5"):
        seen: list[tuple[int, int]] = []
        convert("x.npy", target, progress=lambda done, of: seen.append((done, of)))  # noqa: B023
        assert len(seen) > 1
        assert seen[-1][0] == seen[-1][1]
    assert b2nd_dask.verify("x.b2nd").ok


def _converting(source: str, target: str, connection: Any) -> None:
    def wait(done: int, of: int) -> None:
        connection.send((done, of))
        time.sleep(600)

    convert(source, target, progress=wait)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["zarr", "h5", "b2d"])
def test_a_killed_conversion_leaves_nothing_under_the_name(suffix: str, tmp_path: Path) -> None:
    np.savez("x.npz", x=RNG.random((1500, 1500)), y=np.arange(3))
    target = tmp_path / f"new.{suffix}"
    source = str(tmp_path / "x.npz")
    with started(_converting, source, str(target)) as (process, connection):
        done, of = answer(connection)
        assert 0 < done < of
        assert not target.exists()
        process.kill()
        process.join()
    assert not target.exists()
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["x.npz"]
    (left,) = b2nd_dask.list_staging(target)
    assert left.path.endswith(".staging")
    b2nd_dask.remove_staging(target)
    assert names(tmp_path) == {"x.npz"}
    convert(source, target)
    assert target.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("zarr", "b2nd"), ("b2nd", "zarr"), ("h5", "b2nd")])
def test_memory_is_bounded(first: str, second: str, tmp_path: Path) -> None:
    shape, chunks = (400, 1000, 100), (10, 500, 100)
    values = np.random.default_rng(1).integers(0, 9, shape)
    source, target = tmp_path / f"x.{first}", tmp_path / f"y.{second}"
    if first == "zarr":
        zarr.create_array(source, data=values, chunks=chunks)
    elif first == "h5":
        with h5py.File(source, "w") as file:
            file.create_dataset("x", data=values, chunks=chunks)
    else:
        to_b2nd(values, source, chunks=chunks)
    grown = peak_growth(
        "b2nd_dask.convert(source, target, max_mem='96MB')",
        before=f"b2nd_dask.convert(small, str(small) + '.{second}')",
        small=_small(tmp_path, first),
        source=source,
        target=target,
    )
    assert grown < 128 << 20 < values.nbytes // 2


def _small(folder: Path, kind: str) -> Path:
    """A tiny file of the same format, by which all packages are loaded."""
    small = folder / f"small.{kind}"
    np.save(folder / "small.npy", np.arange(3))
    convert(folder / "small.npy", small)
    return small
