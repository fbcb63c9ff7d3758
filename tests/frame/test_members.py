"""Members of the stores of python-blosc2, read in place; archives and stores that lie."""

from __future__ import annotations

import pickle
import shutil
import struct
import zipfile
from contextlib import closing
from typing import TYPE_CHECKING

import blosc2
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    CorruptChunkError,
    FrameFormatError,
    StaleFrameError,
    UnsupportedFrameError,
    from_b2nd,
    open_b2nd,
    verify,
)
from b2nd_dask.edges.cli import main
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.open import embedded
from b2nd_dask.frame.open.embedded import EmbedStore
from b2nd_dask.storage import Location, Span
from tests.counting import bytes_read
from tests.strategies import examples, indices
from tests.vectors import same

if TYPE_CHECKING:
    from pathlib import Path

LARGE = np.random.default_rng(3).normal(size=(60, 70))
SMALL = np.arange(12.0).reshape(3, 4)
ARRAYS = {"/small": SMALL, "/g/large": LARGE, "/g/h/deep": SMALL + 1}
STORES = ("tree.b2z", "tree.b2d", "dict.b2z", "dict.b2d", "embed.b2e")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stores with the same arrays, large ones as files, and other members."""
    folder = tmp_path_factory.mktemp("stores")
    for name in STORES[:4]:
        kind = blosc2.TreeStore if name.startswith("tree") else blosc2.DictStore
        with kind(str(folder / name), mode="w", threshold=10_000) as store:
            _fill(store)
            store["/g/bytes"] = blosc2.SChunk(chunksize=80_000, data=LARGE)
    _fill(blosc2.EmbedStore(urlpath=str(folder / "embed.b2e"), mode="w"))
    return folder


def _fill(store) -> None:
    for key, values in ARRAYS.items():
        store[key] = (
            blosc2.asarray(values, chunks=(16, 20), blocks=(8, 10)) if values is LARGE else values
        )
    store["/text"] = blosc2.SChunk(chunksize=400, data=b"some text" * 10)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("key", ARRAYS)
def test_arrays_of_stores(stores: Path, name: str, key: str) -> None:
    path, want = stores / name, ARRAYS[key]
    for frame in (
        open_b2nd(path, component=key),
        open_b2nd(str(path), component=key.strip("/")),
        open_b2nd(path / key[1:]),
        open_b2nd(f"{path}{key}"),
        open_b2nd(f"file://{path}{key}"),
    ):
        assert same(frame[...], want)
        assert frame.path.startswith(str(path))
        assert frame.path.removesuffix(".b2nd").endswith(key)
    x = from_b2nd(path, component=key)
    assert same((x[1:] * 2).compute(), want[1:] * 2)
    np.testing.assert_allclose(x.sum().compute(), want.sum())
    assert same(pickle.loads(pickle.dumps(x)).compute(), want)
    assert from_b2nd(f"{path}{key}").name == x.name
    assert verify(f"{path}{key}").reason


@examples(15)
@given(st.data())
def test_parts_of_embedded_frames(stores: Path, data: st.DataObject) -> None:
    frame = open_b2nd(stores / "embed.b2e", component="/g/large")
    index = data.draw(indices(LARGE.shape))
    assert same(frame[index], LARGE[index])


def test_ranges_of_embedded_frames(stores: Path) -> None:
    location = Location.of(stores / "embed.b2e")
    reader = location.open()
    with closing(EmbedStore(reader, location).frame_of("/g/large", "label")) as member:
        store = blosc2.open(str(stores / "embed.b2e"), mode="r")
        entry = store._embed_map["/g/large"]
        whole = bytes(store._store[entry["offset"] : entry["offset"] + entry["length"]])
        size = member.opened_identity().size
        assert size == len(whole)
        rng = np.random.default_rng(1)
        for start, stop in np.sort(rng.integers(0, size + 9000, (60, 2))):
            assert member.read([Span(int(start), int(stop))]) == [whole[start:stop]]
        ((data, found),) = member.read_each(
            [("", Span(5, 20_005))], [memoryview(bytearray(20_000))]
        )
        assert (data, found) == (whole[5:20_005], size)
        with pytest.raises(ValueError, match="no member"):
            member.read([], "x")


def test_only_the_blocks_of_a_selection_are_read(stores: Path) -> None:
    for name in ("tree.b2z", "embed.b2e"):
        frame = open_b2nd(stores / name, component="/g/large")
        some, got = bytes_read(lambda frame=frame: reference_of(frame).read((3, 4)))
        assert got == LARGE[3, 4]
        assert some < LARGE.nbytes / 2


@pytest.mark.parametrize("name", STORES)
def test_arrays_of_stores_on_a_web_server(stores: Path, name: str, http_server) -> None:
    files = [p for p in (stores / name).rglob("*") if p.is_file()] or [stores / name]
    for path in files:
        http_server.put(str(path.relative_to(stores)), path.read_bytes())
    url = f"{http_server.url}/{name}"
    for key, want in ARRAYS.items():
        assert same(open_b2nd(url + key)[...], want)
    assert same(from_b2nd(url, component="/g/large")[5].compute(scheduler="sync"), LARGE[5])
    with pytest.raises(FileNotFoundError, match="/nothing"):
        open_b2nd(url, component="/nothing")
    with pytest.raises(UnsupportedFrameError, match="/text is an SChunk"):
        open_b2nd(url, component="/text")


def test_arrays_of_stores_on_s3(stores: Path, s3_server) -> None:
    options = s3_server.storage_options
    url = s3_server.put("runs/tree.b2z", (stores / "tree.b2z").read_bytes())
    for path in (stores / "tree.b2d").rglob("*.b2*"):
        s3_server.put(f"runs/{path.relative_to(stores)}", path.read_bytes())
    folder = url.replace("b2z", "b2d")
    for store in (url, folder):
        assert same(open_b2nd(f"{store}/g/h/deep", storage_options=options)[...], SMALL + 1)
        x = from_b2nd(store, component="g/large", storage_options=options)
        assert same(x.compute(scheduler="sync"), LARGE)
    members = list_members(Location.of(folder, storage_options=options))
    assert members is not None
    assert {m.key for m in members} >= {*ARRAYS, "/text", "/g/bytes"}


def test_many_stores_are_one_array(stores: Path) -> None:
    x = from_b2nd([stores / name for name in STORES], component="/g/large", stack=True)
    assert same(x.compute(), np.stack([LARGE] * 5))
    y = from_b2nd(f"{stores}/tree.b2?", component="/small")
    assert same(pickle.loads(pickle.dumps(y)).compute(), np.concatenate([SMALL, SMALL]))


@pytest.mark.parametrize("name", STORES)
def test_what_is_no_array_is_named(stores: Path, name: str) -> None:
    path = stores / name
    with pytest.raises(UnsupportedFrameError, match=r"/text is an SChunk, not an array") as error:
        open_b2nd(path, component="/text")
    assert str(path) in str(error.value)
    with pytest.raises(UnsupportedFrameError, match=r"/g is a group; pass one .*: /g/.*/g/large"):
        from_b2nd(path, component="g")
    with pytest.raises(FileNotFoundError, match=r"no member /x/y in this store, which has /g/"):
        from_b2nd(f"{path}/x/y")
    if name != "embed.b2e":
        with pytest.raises(UnsupportedFrameError, match=r"/g/bytes is an SChunk"):
            open_b2nd(path, component="/g/bytes")
    for wrong in ("", "/", "a/../b", "../embed", "a//b"):
        with pytest.raises(ValueError, match="is not a key"):
            open_b2nd(path, component=wrong)
    with pytest.raises(TypeError, match="component= must be the key"):
        open_b2nd(path, component=3)
    listed = {member.key: member.what for member in list_members(Location.of(path))}
    assert listed.keys() >= {*ARRAYS, "/text"}
    assert listed["/small"] == "array 3 x 4, float64"
    assert listed["/g/large"].startswith("array")
    assert listed["/text"].startswith("an SChunk")
    result = CliRunner().invoke(main, ["info", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert all(key in result.output for key in listed)
    result = CliRunner().invoke(main, ["info", f"{path}/g/large"], catch_exceptions=False)
    assert "60 x 70" in result.output


def test_addresses_of_other_servers(tmp_path: Path) -> None:
    path = tmp_path / "a.b2e"
    store = blosc2.EmbedStore(urlpath=str(path), mode="w")
    store["/a"] = SMALL
    # as EmbedStore does for a C2Array, which would need a server
    store._embed_map["/far"] = {"urlbase": "https://example.org", "path": "@public/a.b2nd"}
    store._save_metadata()
    with pytest.raises(UnsupportedFrameError, match="/far is a C2Array"):
        open_b2nd(path, component="/far")
    assert [m.what for m in list_members(Location.of(path))] == [
        "array 3 x 4, float64",
        "a C2Array: an address on a server",
    ]


def test_frames_are_no_stores(tmp_path: Path) -> None:
    blosc2.asarray(SMALL, urlpath=str(tmp_path / "a.b2nd"))
    (tmp_path / "b.b2z").write_bytes(b"no archive, nothing")
    (tmp_path / "c.b2d").mkdir()
    with pytest.raises(UnsupportedFrameError, match="this frame is not a store"):
        open_b2nd(tmp_path / "a.b2nd", component="x")
    with pytest.raises(FrameFormatError, match="not a Blosc2 frame"):
        open_b2nd(tmp_path / "b.b2z", component="x")
    with pytest.raises(FrameFormatError, match=r"without embed\.b2e is not a store"):
        open_b2nd(tmp_path / "c.b2d", component="x")
    with pytest.raises(FileNotFoundError, match=r"gone\.b2z"):
        open_b2nd(tmp_path / "gone.b2z", component="x")
    with pytest.raises(ValueError, match="needs the path or URL of a store"):
        open_b2nd(b"bytes", component="x")


@pytest.mark.parametrize("name", ["tree.b2z", "embed.b2e"])
def test_a_store_that_changes_is_stale(stores: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copy(stores / name, tmp_path / name)
    frame = open_b2nd(path, component="/small")
    x = from_b2nd(frame)
    with (blosc2.TreeStore if name == "tree.b2z" else blosc2.EmbedStore)(
        str(path), mode="a"
    ) as store:
        store["/more"] = SMALL * 2
    del store
    with pytest.raises(StaleFrameError, match="small"):
        frame[...]
    with pytest.raises(StaleFrameError, match="small"):
        x.compute()
    assert same(open_b2nd(path, component="/more")[...], SMALL * 2)


@pytest.mark.parametrize("name", ["tree.b2z", "embed.b2e"])
def test_damage_inside_of_a_store_is_located(stores: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copy(stores / name, tmp_path / name)
    data = bytearray((tmp_path / name).read_bytes())
    # the noise of the large array takes most of the file
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    (tmp_path / name).write_bytes(data)
    frame = open_b2nd(path, component="/g/large")
    with pytest.raises(CorruptChunkError, match=rf"{name}(/g/large)?: chunk \d+"):
        frame[...]


def test_a_damaged_frame_in_an_archive_has_its_key_in_the_message(tmp_path: Path) -> None:
    damaged = bytearray(FRAME)
    start = open_b2nd(FRAME)._reference.parsed.header.header_len
    damaged[start : start + 32] = b"\xff" * 32
    path = _zip(tmp_path / "a.b2z", **{"g/x.b2nd": bytes(damaged)})
    with pytest.raises(CorruptChunkError, match=r"a\.b2z/g/x: chunk 0"):
        open_b2nd(path, component="/g/x")[...]


def _zip(path: Path, how: int = zipfile.ZIP_STORED, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


FRAME = blosc2.asarray(LARGE).to_cframe()


def test_archives_of_other_tools(tmp_path: Path) -> None:
    path = _zip(tmp_path / "a.b2z", zipfile.ZIP_DEFLATED, **{"x.b2nd": FRAME})
    with pytest.raises(UnsupportedFrameError, match=r"'x\.b2nd' is compressed or encrypted by ZIP"):
        open_b2nd(path, component="x")
    assert "cannot be read in place" in list_members(Location.of(path))[0].what
    # in front of the archive stands something else, and names are no paths
    path = _zip(tmp_path / "b.b2z", **{"../x.b2nd": b"", "/etc/x.b2nd": b"", "y.b2nd": FRAME})
    assert same(open_b2nd(path, component="y")[...], LARGE)
    with pytest.raises(ValueError, match="is not a key"):
        open_b2nd(path, component="../x")
    with (
        zipfile.ZipFile(tmp_path / "c.b2z", "w") as archive,
        archive.open("x.b2nd", "w", force_zip64=True) as file,
    ):
        file.write(FRAME)
    assert same(open_b2nd(tmp_path / "c.b2z", component="x")[...], LARGE)
    _zip(tmp_path / "d.b2z")
    with pytest.raises(FileNotFoundError, match="which has nothing"):
        open_b2nd(tmp_path / "d.b2z", component="x")


def _changed(path: Path, magic: bytes, at: int, layout: str, value: int, which: int = 0) -> None:
    """Overwrite a field of the archive's records."""
    data = bytearray(path.read_bytes())
    start = -1
    for _ in range(which + 1):
        start = data.index(magic, start + 1)
    struct.pack_into(layout, data, start + at, value)
    path.write_bytes(data)


CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
#: What lies: the record, its field, and which one of several.
LIES = {
    "two sizes": (CENTRAL, 24, "<I", 5, 0),
    "a size beyond the next file": (CENTRAL, 20, "<I", 1 << 30, 0),
    "an offset beyond the file": (CENTRAL, 42, "<I", 1 << 30, 1),
    "two files in one place": (CENTRAL, 42, "<I", 0, 1),
    "an offset elsewhere": (CENTRAL, 42, "<I", 7, 0),
    "a long name in front": (LOCAL, 26, "<H", 60_000, 0),
    "another method in front": (LOCAL, 8, "<H", 8, 0),
    "a list beyond the file": (END, 16, "<I", 1 << 30, 0),
    "a long list": (END, 12, "<I", 1 << 30, 0),
}


@pytest.mark.parametrize("lie", LIES)
def test_archives_that_lie(tmp_path: Path, lie: str) -> None:
    path = _zip(tmp_path / "a.b2z", **{"x.b2nd": FRAME, "y.b2nd": FRAME})
    _changed(path, *LIES[lie])
    with pytest.raises(FrameFormatError, match=r"a\.b2z: .*damaged ZIP archive"):
        open_b2nd(path, component="x")


def test_a_frame_longer_than_its_member(tmp_path: Path) -> None:
    path = _zip(tmp_path / "a.b2z", **{"x.b2nd": FRAME[:-50], "y.b2nd": FRAME})
    with pytest.raises(FrameFormatError, match=r"a\.b2z/x: at byte 16: the file is cut off: it"):
        open_b2nd(path, component="x")
    path = tmp_path / "b.b2z"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.b2nd", FRAME)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.b2nd", FRAME)
    with pytest.raises(FrameFormatError, match="two files have the name"):
        open_b2nd(path, component="x")


def test_a_long_list_of_files_is_not_read(tmp_path: Path, monkeypatch) -> None:
    names = {f"{'n' * 100}{i}": b"" for i in range(900)}
    path = _zip(tmp_path / "a.b2z", **names, **{"x.b2nd": FRAME})
    monkeypatch.setattr("b2nd_dask.storage.read.container.MAX_DIRECTORY", 100_000)
    with pytest.raises(FrameFormatError, match="its list of files has"):
        open_b2nd(path, component="x")


ENTRIES = {
    "negative": {"offset": -5, "length": 10},
    "beyond": {"offset": 0, "length": 1 << 50},
    "empty": {"offset": 0, "length": 0},
    "no number": {"offset": 0, "length": "9"},
    "a bool": {"offset": True, "length": 9},
    "no position": {},
    "no entry": 7,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_embed_stores_that_lie(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "a.b2e"
    store = blosc2.EmbedStore(urlpath=str(path), mode="w")
    store["/a"] = SMALL
    store._embed_map["/x"] = ENTRIES[entry]
    store._save_metadata()
    with pytest.raises(FrameFormatError, match=r"a\.b2e: .*/x"):
        open_b2nd(path, component="x")
    assert same(open_b2nd(path, component="a")[...], SMALL)
    assert [m.what[:7] for m in list_members(Location.of(path))] == ["array 3", "damaged"]


def test_a_list_of_members_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.b2e"
    store = blosc2.EmbedStore(urlpath=str(path), mode="w")
    for value in (5, {"embed_map": [1]}, {"embed_map": {1: 2}}):
        store._store.vlmeta["estore_metadata"] = value
        with pytest.raises(FrameFormatError, match="the list of members in the store is damaged"):
            open_b2nd(path, component="x")


def test_chunks_of_stores_are_bounded(stores: Path, tmp_path: Path, monkeypatch) -> None:
    # of which nothing is known yet
    path = shutil.copy(stores / "embed.b2e", tmp_path)
    monkeypatch.setattr(embedded, "MAX_CHUNK_NBYTES", 4096)
    with pytest.raises(UnsupportedFrameError, match="an embed store in chunks of 8192 bytes"):
        open_b2nd(path, component="/small")


def test_an_embed_store_that_is_a_link_out_of_the_store(stores: Path, tmp_path: Path) -> None:
    """Who packed a store must not choose which other files are read."""
    shutil.copytree(stores / "tree.b2d", tmp_path / "s.b2d")
    link = tmp_path / "s.b2d" / "embed.b2e"
    link.unlink()
    link.symlink_to(stores / "embed.b2e")
    message = "embed.b2e is a link to a file outside of the store"
    with pytest.raises(UnsupportedFrameError, match=message) as caught:
        open_b2nd(tmp_path / "s.b2d", component="/small")
    assert str(tmp_path / "s.b2d") in str(caught.value)
    with pytest.raises(UnsupportedFrameError, match=message):
        list_members(Location.of(tmp_path / "s.b2d"))
    # a link to the store itself, and one inside it, is its owner's
    (tmp_path / "l.b2d").symlink_to(stores / "tree.b2d")
    assert same(open_b2nd(tmp_path / "l.b2d", component="/small")[...], SMALL)
