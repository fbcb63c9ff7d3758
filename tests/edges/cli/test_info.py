"""`info`: what it prints of frames and stores, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2nd_dask
from tests.edges.cli.running import rows, run, told
from tests.servers import HttpServer, S3Server


def test_info_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    array = blosc2.zeros(
        (10, 7), dtype="f8", chunks=(4, 4), blocks=(2, 4), urlpath=str(path), meta={"who": "[me]"}
    )
    array[:4, :4] = np.arange(16.0).reshape(4, 4)
    array.schunk.vlmeta["units"] = {"t": ["K", 1]}
    result = run("info", str(path))
    assert result.exit_code == 0
    found = rows(result)
    assert found["shape"] == "10 x 7"
    assert found["dtype"] == "float64"
    assert found["chunks"] == "4 x 4, in a grid of 3 x 2"
    assert found["blocks"] == "2 x 4"
    assert found["size"].startswith("560 bytes as an array")
    assert found["chunk kinds"] == "1 stored, 5 zeros"
    assert found["metalayer 'who'"] == "'[me]'"
    assert found["vlmeta 'units'"] == "{'t': ['K', 1]}"


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda path: blosc2.nans((6,), dtype="f4", chunks=(3,), urlpath=path), "2 NaN"),
        (
            lambda path: blosc2.uninit((6,), dtype="f4", chunks=(3,), urlpath=path),
            "2 never written",
        ),
        (lambda path: blosc2.asarray(np.array(5), urlpath=path), "1 stored"),
        (lambda path: blosc2.asarray(np.empty((0, 3)), urlpath=path), "no chunks"),
    ],
    ids=["nan", "uninit", "0-d", "empty"],
)
def test_info_names_the_kinds(tmp_path: Path, make: Callable[[str], object], kinds: str) -> None:
    path = str(tmp_path / "a.b2nd")
    make(path)
    assert rows(run("info", path))["chunk kinds"] == kinds


def test_info_counts_chunks_of_one_value(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    b2nd_dask.to_b2nd(np.repeat([0, 7, 7, 1], 50), path, chunks=50)
    assert rows(run("info", path))["chunk kinds"] == "1 zeros, 3 one value"
    (found,) = told("info", path)
    assert (found["chunk_kinds"]["stored"], found["chunk_kinds"]["one_value"]) == (0, 3)


def test_info_of_a_0d_array(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    blosc2.asarray(np.array(5), urlpath=path)
    assert rows(run("info", path))["shape"] == "0-d"


def test_info_shows_the_rest_when_a_metalayer_cannot_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    array = blosc2.asarray(np.arange(4), urlpath=str(path), meta={"bad": 12345})
    del array
    raw = path.read_bytes()
    # 0xcd is a two-byte integer; 0xc1 is never used by msgpack.
    assert raw.count(b"\xcd\x30\x39") == 1
    path.write_bytes(raw.replace(b"\xcd\x30\x39", b"\xc1\x30\x39"))
    found = rows(run("info", str(path)))
    assert found["shape"] == "4"
    assert found["metalayer 'bad'"].startswith("(cannot be shown: ")


@pytest.mark.parametrize("content", [None, b"", b"no frame at all" * 20])
def test_info_fails_with_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.b2nd"
    if content is not None:
        path.write_bytes(content)
    result = run("info", str(path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "a.b2nd" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("contiguous", [True, False])
def test_info_tells_how_it_is_compressed(tmp_path: Path, contiguous: bool) -> None:
    path = str(tmp_path / "a.b2nd")
    cparams = {"codec": "lz4", "clevel": 3, "filters": ["trunc_prec", "bitshuffle"]}
    cparams["filters_meta"] = [10, 0]
    b2nd_dask.to_b2nd(np.arange(10.0), path, cparams=cparams, contiguous=contiguous)
    found = rows(run("info", path))
    assert found["layout"] == ("contiguous" if contiguous else "sparse, 1 file of chunks")
    assert found["codec"] == "lz4, level 3"
    assert found["filters"] == "trunc_prec, bitshuffle"
    theirs, ours = blosc2.open(path).cparams, b2nd_dask.open_b2nd(path).cparams
    assert dataclasses.replace(theirs, blocksize=0) == ours
    again = str(tmp_path / "b.b2nd")
    b2nd_dask.to_b2nd(np.arange(10.0), again, cparams=ours)
    assert b2nd_dask.open_b2nd(again).cparams == ours


def test_json_is_what_python_says(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    values = np.arange(600.0, dtype="f4").reshape(20, 30)
    values[:10] = 0
    entries = {"dims": ["y", "x"], "units": "K", "raw": b"\xff", "bad": math.nan}
    entries |= {"range": np.array([0, 3], "i2"), "since": np.array("2020-01-01", "M8[D]")}
    b2nd_dask.to_b2nd(values, path, chunks=(10, 10), vlmeta=entries, cparams={"codec": "lz4"})
    (found,) = told("info", str(path))
    frame = b2nd_dask.open_b2nd(path)
    for name in ("shape", "chunks", "blocks"):
        assert found[name] == list(getattr(frame, name))
    for name in ("path", "nchunks", "nbytes", "cbytes"):
        assert found[name] == getattr(frame, name)
    assert found["ratio"] == pytest.approx(frame.cratio)
    assert found["dtype"] == "<f4"
    assert found["dims"] == ["y", "x"]
    assert found["chunk_grid"] == [2, 3]
    assert found["chunk_kinds"] == {"stored": 3, "zeros": 3, "nan": 0, "uninit": 0, "one_value": 0}
    assert (found["codec"], found["clevel"], found["layout"]) == ("lz4", 1, "contiguous")
    assert found["checksums"] == {"state": "present", "reason": None}
    assert found["statistics"] == {"chunks": 0, "of": 6, "nbytes": 0}
    assert found["attributes"]["units"] == "K"
    assert found["attributes"]["bad"] == "nan"
    assert found["attributes"]["range"] == [0, 3]
    assert found["attributes"]["since"] == "2020-01-01"
    assert found["superseded_nbytes"] == 0
    assert list(found) == KEYS


KEYS = [
    *("path", "kind", "shape", "dims", "dtype", "chunks", "blocks", "chunk_grid", "nchunks"),
    *("chunk_kinds", "nbytes", "cbytes", "ratio", "superseded_nbytes", "layout", "codec"),
    *("clevel", "filters", "checksums", "statistics", "metalayers", "attributes"),
]


def test_several_paths_of_which_one_is_missing(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.b2nd") for name in "abc"]
    for path in paths[::2]:
        b2nd_dask.to_b2nd(np.arange(3), path)
    result = run("info", *paths, "--json")
    assert result.exit_code == 1
    assert [each["path"] for each in json.loads(result.stdout)] == paths[::2]
    assert result.stderr == f"Error: {paths[1]}: No such file or directory\n"


def test_members_of_a_store_and_frames_of_a_directory(tmp_path: Path) -> None:
    store = str(tmp_path / "s.b2z")
    with blosc2.TreeStore(store, mode="w") as tree:
        tree["/g/x"] = np.arange(6.0)
        tree["/y"] = np.arange(3)
    (found,) = told("info", store)
    assert (found["kind"], found["path"]) == ("store", store)
    assert [each["key"] for each in found["members"]] == ["/g/x", "/y"]
    assert told("info", f"{store}/g/x")[0]["shape"] == [6]
    (group,) = told("info", f"{store}/g")
    assert [each["key"] for each in group["members"]] == ["/g/x"]
    assert run("verify", f"{store}/g").output.startswith(f"{store}/g/x: no valid checksums")
    b2nd_dask.to_b2nd(np.arange(4), tmp_path / "z.b2nd")
    (tmp_path / "g").mkdir()
    b2nd_dask.to_b2nd(np.arange(5), tmp_path / "g" / "w.b2nd")
    output = run("info", str(tmp_path)).output
    assert "z.b2nd    array 4, int64" in output
    assert "g/w.b2nd  array 5, int64" in output
    assert "s.b2z     store" in output


def test_an_embed_store_in_a_directory(tmp_path: Path) -> None:
    with blosc2.EmbedStore(str(tmp_path / "e.b2e"), mode="w") as embed:
        embed["/x"] = np.arange(3)
    assert run("info", str(tmp_path)).output == "e.b2e  store\n"
    assert run("verify", str(tmp_path)).output.startswith(f"{tmp_path / 'e.b2e'}/x: ")


def test_info_says_what_compact_gives_back(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2nd_dask.to_b2nd(np.random.default_rng(0).random(4000), path, chunks=1000)
    b2nd_dask.to_b2nd(np.arange(1000.0), path, mode="r+", region=slice(0, 1000))
    (found,) = told("info", str(path))
    assert "`b2nd-dask compact PATH`" in rows(run("info", str(path)))["superseded"]
    assert run("compact", "--dry-run", str(path)).output.startswith("about 7.")
    nbytes = path.stat().st_size
    assert run("compact", str(path)).output.endswith("freed\n")
    assert nbytes - path.stat().st_size == pytest.approx(found["superseded_nbytes"], abs=300)
    assert told("info", str(path))[0]["superseded_nbytes"] == 0


@pytest.mark.parametrize("name", ["d.b2d", "d.b2z"])
def test_arrays_of_a_dataset_have_dims_and_dtypes(tmp_path: Path, name: str) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    ds = xr.Dataset({"rain": (("time", "lat"), np.zeros((5, 3), "f4"))}, {"time": np.arange(5)})
    attrs = {"title": "rain of\nparts", "range": [0, 5]}
    b2nd_dask.to_b2nd(ds.assign_attrs(attrs), tmp_path / name)
    assert told("info", str(tmp_path / name))[0]["attributes"] == attrs
    lines = run("info", str(tmp_path / name)).output.splitlines()
    assert lines[-2:] == [r"attribute 'title'  'rain of\nparts'", "attribute 'range'  [0, 5]"]
    assert any("/rain" in each and "array time 5 x lat 3, float32" in each for each in lines)
    assert any("/_coord_time" in each and "array time 5, int64" in each for each in lines)
    if name.endswith(".b2z"):
        missing = run("info", f"{tmp_path / name}/snow").stderr
        assert "no member /snow in this store, which has /_coord_time, /rain\n" in missing


@pytest.mark.parametrize("name", ["d.b2d", "d"])
@pytest.mark.parametrize("where", ["local", "web", "s3"])
def test_a_dataset_of_groups_is_listed_everywhere(
    http_server: HttpServer, s3_server: S3Server, tmp_path: Path, where: str, name: str
) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    ds = xr.Dataset({"50% #a": ("time", np.zeros(5))}, {"time": np.arange(5)}, {"title": "t"})
    folder = http_server.folder / tmp_path.name
    folder.mkdir(exist_ok=True)
    b2nd_dask.to_b2nd(xr.DataTree.from_dict({"/": ds, "/g": ds}), folder / name)
    base, options = {
        "local": (str(folder), {}),
        "web": (f"{http_server.url}/{tmp_path.name}", {}),
        "s3": (f"{s3_server.url}/{tmp_path.name}", s3_server.storage_options),
    }[where]
    for file in folder.rglob("*"):
        if where == "s3" and file.is_file():
            s3_server.put(f"{tmp_path.name}/{file.relative_to(folder)}", file.read_bytes())
    given = [f"--storage-option={k}={json.dumps(v)}" for k, v in options.items()]
    (found,) = told("info", f"{base}/{name}", *given)
    keys = {each["key"].lstrip("/").removesuffix(".b2nd") for each in found["members"]}
    assert keys - {"dataset", "g/dataset"} == {"50% #a", "_coord_time", "g/50% #a"}
    assert not [each for each in found["members"] if each["what"].startswith("damaged")]
    assert found["attributes"] == {"title": "t"}
    result = run("verify", f"{base}/{name}", *given)
    assert (result.exit_code, result.output.count(": verified")) == (0, 3)


def test_stores_in_a_folder_of_an_object_store(s3_server: S3Server, tmp_path: Path) -> None:
    with blosc2.TreeStore(str(tmp_path / "s.b2d"), mode="w", threshold=100) as tree:
        tree["/g/small"], tree["/large"] = np.arange(3), np.arange(3000)
    with blosc2.TreeStore(str(tmp_path / "s.b2z"), mode="w") as tree:
        tree["/x"] = np.arange(3)
    b2nd_dask.to_b2nd(np.arange(3), tmp_path / "sparse.b2nd", contiguous=False)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            s3_server.put(f"{tmp_path.name}/{file.relative_to(tmp_path)}", file.read_bytes())
    given = [f"--storage-option={k}={json.dumps(v)}" for k, v in s3_server.storage_options.items()]
    url = f"{s3_server.url}/{tmp_path.name}"
    lines = run("verify", url, *given).output.splitlines()
    names = [line.removeprefix(f"{url}/").partition(":")[0] for line in lines]
    assert names == ["s.b2d/embed.b2e/g/small", "s.b2d/large.b2nd", "s.b2z/x", "sparse.b2nd"]


def test_names_of_stores_without_one(tmp_path: Path, s3_server: S3Server) -> None:
    given = [f"--storage-option={k}={json.dumps(v)}" for k, v in s3_server.storage_options.items()]
    result = run("info", f"{s3_server.url}/{tmp_path.name}.b2d", *given)
    assert (result.exit_code, result.output.endswith(".b2d: No such object\n")) == (1, True)
    (tmp_path / "junk.b2z").write_bytes(b"junk")
    assert "not a Blosc2 frame" in run("info", str(tmp_path / "junk.b2z")).stderr


def test_embedded_coordinates_are_shown_by_their_size(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    path = str(tmp_path / "x.b2nd")
    x = xr.DataArray(
        np.zeros((5, 3)), {"time": np.arange(5), "lat": np.arange(3.0)}, ("time", "lat")
    )
    b2nd_dask.to_b2nd(x, path)
    sizes = {
        name: f"<{len(raw)} bytes>"
        for name, raw in b2nd_dask.open_b2nd(path).attrs["coords"].items()
    }
    assert list(sizes) == ["time", "lat"]
    assert told("info", path)[0]["attributes"]["coords"] == sizes
    shown = "{" + ", ".join(f"{name!r}: {sizes[name]}" for name in sorted(sizes)) + "}"
    assert rows(run("info", path))["vlmeta 'coords'"] == shown


def test_bytes_of_text_are_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "x.b2nd")
    entries = {"note": b"a note of text " * 5, "long": b"a" * 5000, "short": b"\xff"}
    b2nd_dask.to_b2nd(np.arange(3), path, vlmeta=entries)
    found, texts = told("info", path)[0]["attributes"], rows(run("info", path))
    assert found == {name: repr(value) for name, value in entries.items()}
    assert texts["vlmeta 'note'"] == found["note"]
    assert texts["vlmeta 'short'"] == found["short"]
    assert len(texts["vlmeta 'long'"]) == 200


def test_no_path() -> None:
    result = run("info", "")
    assert result.exit_code == 1
    assert result.stderr == "Error: the path is empty: urlpath is empty\n"


def test_a_damaged_manifest_leaves_the_listing(tmp_path: Path) -> None:
    b2nd_dask.to_b2nd(np.arange(4), tmp_path / "z.b2nd")
    (tmp_path / "dataset.json").write_text("{")
    result = run("info", str(tmp_path))
    assert "z.b2nd  array 4, int64" in result.output
    assert "dataset.json" in result.stderr
    assert result.exit_code != 0


def test_a_damaged_member_is_listed_and_fails(tmp_path: Path) -> None:
    for name in ("x", "y"):
        b2nd_dask.to_b2nd(np.arange(4), tmp_path / f"{name}.b2nd")
    (tmp_path / "y.b2nd").write_bytes(b"no frame")
    result = run("info", str(tmp_path))
    assert "x.b2nd  array 4, int64" in result.output
    assert re.search(r"^y\.b2nd  damaged *$", result.stdout, re.MULTILINE)
    assert f"{tmp_path / 'y.b2nd'}: at byte 0: not a Blosc2 frame" in result.stderr
    assert result.exit_code == 1
