"""Stores of python-blosc2, and frames behind URLs."""

import json
import struct
import zipfile

import blosc2
import fsspec
import numpy as np
import pytest
import xarray as xr

from b2nd_dask import B2ndError, FrameFormatError, UnsupportedFrameError, to_b2nd
from tests.edges.xarray.labelled import labels, weather, write_dataset, write_frame

BIG = np.random.default_rng(0).random((50, 400))


def fill(store):
    """A labelled dataset, arrays without labels, and something else."""
    t = blosc2.asarray(np.arange(12.0).reshape(3, 4))
    for entry, value in labels(("x", "y"), "t", attrs={"units": "K"}).items():
        t.vlmeta[entry] = value
    store["/model/t"] = t
    x = blosc2.asarray(np.arange(3) * 10)
    for entry, value in labels(("x",), "x", coord=True).items():
        x.vlmeta[entry] = value
    store["/model/x"] = x
    store["/plain/a"] = np.arange(5)
    store["/plain/big"] = BIG
    store["/top"] = np.arange(2)


@pytest.fixture(params=[".b2z", ".b2d", ".b2e"])
def store(tmp_path, request):
    path = str(tmp_path / f"s{request.param}")
    if request.param == ".b2e":
        fill(blosc2.EmbedStore(path, mode="w"))
    else:
        with blosc2.TreeStore(path, mode="w") as tree:
            fill(tree)
            tree.vlmeta["title"] = "attributes of groups are not read"
    return path


MODEL = xr.Dataset(
    {"t": (("x", "y"), np.arange(12.0).reshape(3, 4), {"units": "K"})}, {"x": np.arange(3) * 10}
)


@pytest.mark.parametrize("chunks", [None, {}])
def test_groups(store, chunks):
    for ds in (
        xr.open_dataset(store, group="model", chunks=chunks),
        xr.open_dataset(f"{store}/model", engine="b2nd", chunks=chunks),
    ):
        xr.testing.assert_identical(ds.compute(), MODEL)
    plain = xr.open_dataset(store, engine="b2nd", group="/plain/", chunks=chunks)
    # lengths differ
    assert plain.big.dims == ("big_dim_0", "big_dim_1")
    np.testing.assert_array_equal(plain.big[3:5].values, BIG[3:5])
    assert list(xr.open_dataset(store).data_vars) == ["top"]
    assert xr.open_dataset(f"{store}/plain/a", engine="b2nd").a.dims == ("dim_0",)


def test_tree(store):
    tree = xr.open_datatree(store)
    assert set(tree.groups) == {"/", "/model", "/plain"}
    xr.testing.assert_identical(tree["model"].to_dataset().load(), MODEL)
    assert set(xr.open_groups(store)) == {"/", "/model", "/plain"}
    with pytest.raises(FileNotFoundError, match="no group 'nix' here; groups: model, plain"):
        xr.open_dataset(store, group="nix")


def test_a_path_of_an_array_and_of_a_group(tmp_path):
    path = str(tmp_path / "s.b2z")
    with blosc2.DictStore(path, mode="w") as made:
        made["/a"] = np.arange(4)
        made["/a/x"] = np.arange(5)
    assert xr.open_dataset(f"{path}/a", engine="b2nd").sizes == {"dim_0": 4}
    assert xr.open_dataset(path, engine="b2nd", group="a").sizes == {"dim_0": 5}
    assert xr.open_dataset(f"{path}/a/x", engine="b2nd").sizes == {"dim_0": 5}


def test_no_arrays_at_the_root(tmp_path):
    path = str(tmp_path / "s.b2z")
    with blosc2.TreeStore(path, mode="w") as tree:
        tree["/g/a"] = np.arange(3)
    with pytest.raises(ValueError, match="no arrays here, but groups: g; pass group="):
        xr.open_dataset(path)


def test_a_manifest_that_is_a_link_out_of_the_store(tmp_path):
    path = tmp_path / "s.b2d"
    with blosc2.TreeStore(str(path), mode="w") as tree:
        tree["/a"] = np.arange(3)
    (tmp_path / "secret").write_text("{}")
    (path / "dataset.json").symlink_to(tmp_path / "secret")
    with pytest.raises(B2ndError, match=r"dataset\.json is a link to a file outside"):
        xr.open_dataset(path)


def test_a_manifest_that_is_too_long(tmp_path):
    path = tmp_path / "s.b2z"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dataset.json", b" " * (17 << 20))
    with pytest.raises(B2ndError, match=r"s\.b2z.*'dataset\.json' has more than"):
        xr.open_dataset(path)


@pytest.fixture
def ds():
    return weather(12)


@pytest.mark.parametrize("chunks", [None, {}])
def test_over_http(http_server, ds, tmp_path, chunks):
    folder = write_dataset(ds, http_server.folder / tmp_path.name / "w")
    url = f"{http_server.url}/{tmp_path.name}/w"
    local = xr.open_dataset(folder, engine="b2nd").load()
    # a web server lists nothing: the manifest does
    found = xr.open_dataset(f"{url}/", engine="b2nd", chunks=chunks)
    xr.testing.assert_identical(found.compute(), local)
    one = xr.open_dataset(f"{url}/t.b2nd", engine="b2nd", chunks=chunks)
    np.testing.assert_array_equal(one.t, local.t)
    (folder / "dataset.json").unlink()
    with pytest.raises(Exception, match=r"w"):
        xr.open_dataset(f"{url}/", engine="b2nd")


@pytest.mark.parametrize("chunks", [None, {}])
def test_on_s3(s3_server, ds, tmp_path, chunks):
    name = tmp_path.name
    folder = write_dataset(ds, tmp_path / "w")
    write_frame(folder / "sparse.b2nd", BIG, ("a", "b"), "sparse", contiguous=False)
    for file in folder.rglob("*"):
        if file.is_file():
            s3_server.put(f"{name}/{file.relative_to(tmp_path)}", file.read_bytes())
    options = {"storage_options": s3_server.storage_options, "engine": "b2nd", "chunks": chunks}
    local = xr.open_dataset(folder, engine="b2nd").load()
    for url in (f"{s3_server.url}/{name}/w", f"{s3_server.url}/{name}/w/"):
        found = xr.open_dataset(url, **options)
        xr.testing.assert_identical(found.compute(), local)
    assert list(xr.open_dataset(f"{s3_server.url}/{name}/w/t.b2nd", **options)) == ["t"]
    sparse = xr.open_dataset(f"{s3_server.url}/{name}/w/sparse.b2nd/", **options)
    np.testing.assert_array_equal(sparse.sparse, BIG)
    tree = xr.open_datatree(f"{s3_server.url}/{name}/", **options)
    assert "/w" in tree.groups
    with pytest.raises(FileNotFoundError):
        xr.open_dataset(f"{s3_server.url}/{name}/nothing", **options)


@pytest.mark.parametrize("name", ["w.b2d", "w", "w.b2z", "w/"])
def test_nothing_in_an_object_store_is_a_missing_object(s3_server, tmp_path, name):
    options = {"storage_options": s3_server.storage_options, "engine": "b2nd"}
    for opener in (xr.open_dataset, xr.open_groups):
        with pytest.raises(FileNotFoundError, match=r"No such bucket: 's3://typo/w"):
            opener(f"s3://typo/{name}", **options)
        with pytest.raises(FileNotFoundError, match="No such object"):
            opener(f"{s3_server.url}/{tmp_path.name}/{name}", **options)


def test_a_group_that_holds_only_groups_opens_in_an_object_store(tmp_path):
    leaf = xr.Dataset({"a": ("x", np.arange(3.0))})
    xr.DataTree.from_dict({"/model/run": leaf, "/b": leaf}).b2nd.to_b2nd(tmp_path / "tree")
    store = fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}"
    store.put(str(tmp_path / "tree"), url, recursive=True)
    found = xr.open_dataset(url, engine="b2nd", group="model/run")
    xr.testing.assert_identical(found.load(), leaf)
    with pytest.raises(FileNotFoundError, match="no group 'x' here; groups: b, model"):
        xr.open_dataset(url, engine="b2nd", group="x")
    store.rm(url, recursive=True)


@pytest.mark.parametrize("where", ["local", "memory", "http"])
@pytest.mark.parametrize("groups", [["/only"], ["/model/run", "/model/plan"]])
def test_a_tree_does_not_open_as_one_of_its_groups(http_server, tmp_path, where, groups):
    leaf = xr.Dataset({"a": ("x", np.arange(3.0))})
    tree = xr.DataTree.from_dict(dict.fromkeys(groups, leaf))
    folder = http_server.folder / tmp_path.name
    tree.b2nd.to_b2nd(folder)
    store = fsspec.filesystem("memory")
    store.put(str(folder), f"memory://{folder.name}", recursive=True)
    urls = {"memory": f"memory://{folder.name}", "http": f"{http_server.url}/{folder.name}/"}
    path = urls.get(where, folder)
    first = groups[0].split("/")[1]
    with pytest.raises(ValueError, match=f"no arrays here, but groups: {first}; pass group="):
        xr.open_dataset(path, engine="b2nd")
    assert set(xr.open_groups(path, engine="b2nd")) == set(tree.groups)
    store.rm(f"memory://{folder.name}", recursive=True)


def test_groups_over_http(http_server, tmp_path):
    leaf = xr.Dataset({"a": ("x", np.arange(3.0))})
    folder = http_server.folder / tmp_path.name
    xr.DataTree.from_dict(dict.fromkeys(["/model/run", "/b"], leaf)).b2nd.to_b2nd(folder)
    (folder / "own").mkdir()
    leaf.b2nd.to_b2nd(folder / "own" / "later")
    url = f"{http_server.url}/{folder.name}/"
    # no manifest names the last one
    for group in ("model/run", "b", "own/later"):
        http_server.reset()
        xr.testing.assert_identical(xr.open_dataset(url, engine="b2nd", group=group).load(), leaf)
        # siblings are not asked for
        paths = [each.path.removeprefix(f"/{folder.name}/") for each in http_server.requests]
        assert {path.rpartition("/")[0] for path in paths} == {"", group}
    for group, known in {
        "x": "b, model",
        "model/x": "run",
        "..": "b, model",
        "b/x": "none",
    }.items():
        name = group.rpartition("/")[2]
        with pytest.raises(FileNotFoundError, match=f"no group '{name}' here; groups: {known}"):
            xr.open_dataset(url, engine="b2nd", group=group)


@pytest.mark.parametrize("name", ["what?", "a#1", "a::b", "50%", "a%20b", "%41", "a b", "ü;x"])
def test_names_over_http_are_those_of_files(http_server, tmp_path, name):
    leaf = xr.Dataset({name: ("x", np.arange(3.0))})
    folder = http_server.folder / tmp_path.name
    xr.DataTree.from_dict({"/": leaf, f"/{name}s": leaf}).b2nd.to_b2nd(folder)
    url = f"{http_server.url}/{tmp_path.name}/?token=1"
    assert set(xr.open_groups(url, engine="b2nd")) == {"/", f"/{name}s"}
    for group in ("", f"{name}s"):
        found = xr.open_dataset(url, engine="b2nd", group=group)
        xr.testing.assert_identical(found.load(), leaf)
    assert all(each.path.endswith("?token=1") for each in http_server.requests)


def test_stores_on_s3(s3_server, tmp_path):
    path = tmp_path / "s.b2z"
    with blosc2.TreeStore(str(path), mode="w") as tree:
        fill(tree)
    url = s3_server.put(f"{tmp_path.name}/s.b2z", path.read_bytes())
    options = {"storage_options": s3_server.storage_options, "engine": "b2nd"}
    found = xr.open_dataset(url, group="model", **options)
    xr.testing.assert_identical(found.load(), MODEL)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_manifest_that_may_unpack_to_anything(tmp_path, method):
    path = tmp_path / "s.b2z"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.b2nd", blosc2.asarray(np.arange(3)).to_cframe())
        archive.writestr("dataset.json", b'{"data_vars": ["t"]}' + b" " * 10**6, method)
    with pytest.raises(B2ndError, match=r"s\.b2z.*'dataset\.json'.*neither stored nor deflated"):
        xr.open_dataset(path, engine="b2nd")


def manifest(**own):
    return json.dumps({"data_vars": [], "b2nd": {"version": 1, **own}})


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
def test_groups_that_only_the_manifest_has(tmp_path, suffix):
    path = tmp_path / f"s{suffix}"
    to_b2nd(xr.Dataset({"t": ("x", np.arange(3.0))}), path)
    rest = {"dataset.json": manifest(groups=[f"g{n}" for n in range(200_000)])}
    rewrite(path, rest)
    with pytest.raises(FrameFormatError, match=r"names the group 'g0', which does not exist"):
        xr.open_datatree(path, engine="b2nd")
    # attributes alone
    rewrite(path, {"dataset.json": manifest(groups=["g"]), "g/dataset.json": '{"attrs": {"a": 1}}'})
    assert xr.open_datatree(path, engine="b2nd")["g"].attrs == {"a": 1}
    # another group may be missing
    rewrite(path, {"dataset.json": manifest(groups=["g", "h"])})
    assert xr.open_dataset(path, engine="b2nd", group="g").attrs == {"a": 1}
    with pytest.raises(FrameFormatError, match=r"names the group 'h', which does not exist"):
        xr.open_dataset(path, engine="b2nd", group="h")
    with pytest.raises(FileNotFoundError, match=r"no group 'i' here; groups: g, h"):
        xr.open_dataset(path, engine="b2nd", group="i")


def rewrite(path, members):
    """Put files into a store, in place of those of their names."""
    if path.is_dir():
        for name, text in members.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        return
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name not in members}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**kept, **members}.items():
            archive.writestr(name, data)


def test_groups_without_number(tmp_path):
    path = tmp_path / "s.b2z"
    names = [f"g{n}" for n in range(10_001)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dataset.json", manifest(groups=names))
        for name in names:
            archive.writestr(f"{name}/dataset.json", "{}")
    with pytest.raises(UnsupportedFrameError, match=r"s\.b2z: .*more than 10000 groups; .* group="):
        xr.open_datatree(path, engine="b2nd")


def test_groups_in_very_many_others(tmp_path):
    path, frame = tmp_path / "s.b2z", blosc2.asarray(np.arange(3.0)).to_cframe()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("top.b2nd", frame)
        archive.writestr("g/" * 32 + "deep.b2nd", frame)
    assert len(xr.open_datatree(path, engine="b2nd").groups) == 33
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("g/" * 33 + "deep.b2nd", frame)
    with pytest.raises(UnsupportedFrameError, match=r"s\.b2z.*more than 32 others; .*group="):
        xr.open_datatree(path, engine="b2nd")
    ds = xr.open_dataset(path, engine="b2nd", group="g/" * 33)
    assert ds.deep.values.tolist() == [0, 1, 2]


def test_an_array_and_a_group_of_one_name(tmp_path):
    path, frame = tmp_path / "s.b2z", blosc2.asarray(np.arange(3.0)).to_cframe()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.b2nd", frame)
        archive.writestr("a/x.b2nd", frame)
    with pytest.raises(ValueError, match=r"s\.b2z: an array and a group .*open_groups"):
        xr.open_datatree(path, engine="b2nd")
    assert {*xr.open_groups(path, engine="b2nd")} == {"/", "/a"}


def test_coordinates_without_number(tmp_path):
    frame = blosc2.asarray(np.arange(3.0), urlpath=str(tmp_path / "a.b2nd"))
    one = blosc2.asarray(np.arange(1)).to_cframe()
    frame.schunk.vlmeta["dims"] = ["x"]
    frame.schunk.vlmeta["coords"] = {f"c{n}": one for n in range(1001)}
    with pytest.raises(FrameFormatError, match=r"a\.b2nd: .*1001 coordinates; the maximum is 1000"):
        xr.open_dataarray(tmp_path / "a.b2nd", engine="b2nd")
    array = xr.DataArray(np.arange(3.0), dims="x", coords={f"c{n}": n for n in range(1001)})
    with pytest.raises(ValueError, match=r"1001 coordinates; .* write a dataset"):
        to_b2nd(array, tmp_path / "b.b2nd")
    assert not (tmp_path / "b.b2nd").exists()


@pytest.mark.parametrize("name", ["/g/../x.b2nd", "g//x.b2nd", "x\0.b2nd"])
def test_members_without_a_key(tmp_path, name):
    path = tmp_path / "s.b2z"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name.replace("\0", "?"))
        info.filename = info.orig_filename = name.replace("\0", "?")
        archive.writestr(info, blosc2.asarray(np.arange(3)).to_cframe())
    path.write_bytes(path.read_bytes().replace(b"x?.b2nd", b"x\0.b2nd"))
    with pytest.raises(
        UnsupportedFrameError, match=r"s\.b2z.*no frame can be found by (a|the) key"
    ) as raised:
        xr.open_datatree(path, engine="b2nd")
    assert "component=" not in str(raised.value)


def test_a_list_of_files_before_the_archive(tmp_path):
    path = tmp_path / "s.b2z"
    to_b2nd(xr.Dataset({"t": ("x", np.arange(3.0))}), path)
    raw = bytearray(path.read_bytes())
    # size and offset of the list, in the record that ends an archive (APPNOTE 4.3.16)
    struct.pack_into("<II", raw, len(raw) - 22 + 12, 2**31, 50)
    path.write_bytes(raw)
    with pytest.raises(FrameFormatError, match=r"s\.b2z: a damaged ZIP archive"):
        xr.open_dataset(path, engine="b2nd")
