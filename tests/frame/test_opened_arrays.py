"""Opened arrays of python-blosc2: the frame is found where it lies, also inside a store."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.frame.array import reference_of

FIELD = np.arange(12000.0).reshape(100, 120)
#: Of one shape, so that only their chunks tell them apart.
TWINS = {"/one": np.arange(500, dtype="i4"), "/g/two": np.arange(500, dtype="i4")[::-1].copy()}
TWINS["/three"] = np.where(np.arange(500) < 400, TWINS["/one"], 7)
ARRAYS = {"/field": FIELD, **TWINS}
STORES = [blosc2.DictStore, blosc2.TreeStore]


def fill(store: Any, arrays: dict[str, np.ndarray] = ARRAYS) -> None:
    for key, values in arrays.items():
        chunks = tuple(max(1, n // 5) for n in values.shape)
        store[key] = blosc2.asarray(values, chunks=chunks, cparams={"clevel": 0})


def require_reference(array: Any, path: Path, values: np.ndarray) -> None:
    """The frame is the one of the array, and another process finds it in the file."""
    frame = open_b2nd(array)
    assert reference_of(frame).location.urlpath == str(path)
    np.testing.assert_array_equal(frame[...], values)
    sent = pickle.dumps(frame)
    assert len(sent) < 2000
    np.testing.assert_array_equal(pickle.loads(sent)[...], values)
    x = from_b2nd(array)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).compute(), values)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("mmap_mode", [None, "r"])
def test_arrays_of_a_zipped_store(tmp_path: Path, kind: type, mmap_mode: str | None) -> None:
    path = tmp_path / "t.b2z"
    with kind(str(path), mode="w") as store:
        fill(store)
    with kind(str(path), mode="r", mmap_mode=mmap_mode) as store:
        for key, values in ARRAYS.items():
            require_reference(store[key], path, values)
    store = blosc2.open(str(path), mode="r")
    assert {reference_of(open_b2nd(store[key])).location.offset for key in ARRAYS} == {
        store.member_window(key)[0] for key in ARRAYS
    }


def test_an_array_of_a_part_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "t.b2z"
    with blosc2.TreeStore(str(path), mode="w") as store:
        fill(store)
    part = blosc2.TreeStore(str(path), mode="r").get_subtree("/g")
    require_reference(part["/two"], path, TWINS["/g/two"])


@pytest.mark.parametrize("kept", [True, False], ids=["store open", "store gone"])
def test_a_store_opened_as_by_default(tmp_path: Path, kept: bool) -> None:
    # mode="a" unpacks the store into a folder that goes with it; the array is still in the store
    path = tmp_path / "t.b2z"
    with blosc2.TreeStore(str(path), mode="w") as store:
        fill(store)
    store = blosc2.TreeStore(str(path))
    arrays = {key: store[key] for key in ARRAYS}
    assert Path(arrays["/one"].schunk.urlpath) != path
    if not kept:
        del store
        gc.collect()
    for key, values in ARRAYS.items():
        require_reference(arrays[key], path, values)


def test_an_array_that_a_store_does_not_hold_yet(tmp_path: Path) -> None:
    path = tmp_path / "t.b2z"
    with blosc2.TreeStore(str(path), mode="w") as store:
        fill(store)
        for opened in (open_b2nd, from_b2nd):
            with pytest.warns(
                UserWarning, match="open for changes, .*removed when the store is closed"
            ) as caught:
                frame = opened(store["/field"])
            assert [warning.filename for warning in caught] == [__file__]
        np.testing.assert_array_equal(np.asarray(frame), FIELD)
    with blosc2.TreeStore(str(path), mode="a") as store:
        one = store["/one"]
        one[3] = -1
        with pytest.warns(UserWarning, match="does not yet hold the current '/one'"):
            frame = open_b2nd(one)
        np.testing.assert_array_equal(frame[...], one[...])
    # the closed store holds it
    require_reference(one, path, one[...])
    with blosc2.TreeStore(str(path), mode="w") as store:
        fill(store, {"/one": TWINS["/three"]})
    with pytest.raises(
        FileNotFoundError, match="no longer has the '/one' that this array was read"
    ):
        open_b2nd(one)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("mode", ["r", "a"])
def test_arrays_of_a_folder(tmp_path: Path, kind: type, mode: str) -> None:
    path = tmp_path / "t.b2d"
    with kind(str(path), mode="w") as store:
        fill(store)
    with kind(str(path), mode=mode) as store:
        for key, values in ARRAYS.items():
            require_reference(store[key], Path(f"{path}{key}.b2nd"), values)


@pytest.mark.parametrize("name", ["t.b2z", "t.b2d", "t.b2e"])
def test_arrays_inside_of_an_embedded_store_are_copied(tmp_path: Path, name: str) -> None:
    # they are chunks of another frame: no file holds them as they are
    path = str(tmp_path / name)
    if name == "t.b2e":
        fill(blosc2.EmbedStore(path, mode="w"))
    else:
        with blosc2.TreeStore(path, mode="w", threshold=1 << 30) as store:
            fill(store)
    store = blosc2.open(path, mode="r")
    for key, values in ARRAYS.items():
        frame = open_b2nd(store[key])
        assert isinstance(reference_of(frame).location.urlpath, bytes)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(frame))[...], values)


@pytest.mark.parametrize("key", ARRAYS)
def test_an_array_opened_at_an_offset_of_a_store(tmp_path: Path, key: str) -> None:
    # python-blosc2 does not tell the offset, and the user knows it
    path = tmp_path / "t.b2z"
    with blosc2.DictStore(str(path), mode="w") as store:
        fill(store)
    offset, _ = blosc2.DictStore(str(path), mode="r").member_window(key)
    array = blosc2.open(str(path), mode="r", offset=offset)
    with pytest.raises(ValueError, match=r"t\.b2z: .*pass the path and offset= instead"):
        open_b2nd(array)
    np.testing.assert_array_equal(open_b2nd(array, offset=offset)[...], ARRAYS[key])
    np.testing.assert_array_equal(open_b2nd(path, offset=offset)[...], ARRAYS[key])


def test_arrays_of_special_chunks_in_an_open_store(tmp_path: Path) -> None:
    path, kinds = tmp_path / "t.b2z", (blosc2.zeros, blosc2.nans, blosc2.uninit)
    with blosc2.DictStore(str(path), mode="w") as store:
        for make in kinds:
            store[f"/{make.__name__}"] = make((40,), dtype="f8", chunks=(10,))
        store["/full"] = blosc2.full((40,), 3.5, chunks=(10,))
    with blosc2.DictStore(str(path), mode="a") as store:
        for key in ("/full", *(f"/{make.__name__}" for make in kinds)):
            assert reference_of(open_b2nd(store[key])).location.member == key
        store["/full"] = blosc2.zeros((40,), dtype="f8", chunks=(10,))
        with pytest.warns(UserWarning, match="does not yet hold the current '/full'"):
            assert not open_b2nd(store["/full"])[...].any()


def test_a_store_that_was_written_anew_with_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "t.b2z"
    with blosc2.DictStore(str(path), mode="w") as store:
        fill(store, {"/a": FIELD, "/b": FIELD})
    store = blosc2.DictStore(str(path), mode="r")
    a, b = store["/a"], store["/b"]
    with blosc2.DictStore(str(path), mode="w") as store:
        fill(store, {"/a": FIELD[1:]})
    for array in (a, b):
        with pytest.raises(FileNotFoundError, match=r"t\.b2z no longer .*read the array again"):
            open_b2nd(array)


def test_an_array_inside_of_any_other_file(tmp_path: Path) -> None:
    path = tmp_path / "two.bin"
    one, two = (blosc2.asarray(TWINS[key], chunks=(100,)).to_cframe() for key in ("/one", "/g/two"))
    path.write_bytes(one + two)
    require_reference(blosc2.open(str(path), mode="r"), path, TWINS["/one"])
    second = blosc2.open(str(path), mode="r", offset=len(one))
    np.testing.assert_array_equal(second[:], TWINS["/g/two"])
    with pytest.raises(ValueError, match="pass the path and offset= instead") as caught:
        open_b2nd(second)
    assert str(path) in str(caught.value)
    np.testing.assert_array_equal(open_b2nd(second, offset=len(one))[:], TWINS["/g/two"])
    np.testing.assert_array_equal(open_b2nd(path, offset=len(one))[:], TWINS["/g/two"])


@pytest.mark.parametrize("contiguous", [True, False])
def test_arrays_in_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contiguous: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.b2nd", "~.b2nd"):
        array = blosc2.asarray(FIELD, urlpath=name, contiguous=contiguous, mode="w")
        require_reference(array, tmp_path / name, FIELD)


def test_what_only_looks_like_an_array_is_not_read_as_another(tmp_path: Path) -> None:
    values = np.zeros(20, dtype=[("x", "i4"), ("y", "f8")])
    values["x"] = np.arange(20)
    array = blosc2.asarray(values, urlpath=str(tmp_path / "a.b2nd"), mode="w")
    plain = blosc2.asarray(FIELD, urlpath=str(tmp_path / "b.b2nd"), mode="w")
    proxy = blosc2.Proxy(plain, urlpath=str(tmp_path / "proxy.b2nd"), mode="w")
    for given in (array["x"], proxy):
        with pytest.raises(TypeError, match=type(given).__name__):
            open_b2nd(given)
        with pytest.raises(TypeError, match=type(given).__name__):
            to_b2nd(given, tmp_path / "x.b2nd")


def test_an_array_of_a_store_is_written_and_computed_with(tmp_path: Path) -> None:
    path = str(tmp_path / "t.b2z")
    with blosc2.TreeStore(path, mode="w") as store:
        fill(store)
    array = blosc2.TreeStore(path, mode="r")["/field"]
    to_b2nd(array, tmp_path / "out.b2nd")
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "out.b2nd"))[...], FIELD)
    total = da.sum(from_b2nd(array) * 2).compute(scheduler="processes", num_workers=1)
    assert total == FIELD.sum() * 2
