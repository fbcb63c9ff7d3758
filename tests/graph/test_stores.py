"""Writes into stores of python-blosc2, beside and over them, and changes of their arrays."""

from __future__ import annotations

import shutil
import uuid
import zipfile
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest
from click.testing import CliRunner

import b2nd_dask
from b2nd_dask import UnsupportedFrameError, compact, from_b2nd, open_b2nd, seal, to_b2nd
from b2nd_dask.edges.cli import main
from b2nd_dask.frame.members import listing
from b2nd_dask.frame.members import store as opened_store
from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.open import embedded
from b2nd_dask.storage import Location, natural_key
from tests.vectors import same

#: Each mode that writes to a frame, and where.
MODES = (("w-", {}), ("w", {}), ("a", {"append_axis": 0}), ("r+", {"region": 0}))
LARGE = np.arange(6000.0).reshape(60, 100)
SMALL = np.arange(5.0)
KEYS = {"/g/large", "/g/small", "/g/run[1]", "/g/run1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for name in ("a.b2d", "a.b2z"):
        with blosc2.TreeStore(str(folder / name), mode="w", threshold=10_000) as store:
            _fill(store)
    _fill(blosc2.EmbedStore(urlpath=str(folder / "a.b2e"), mode="w"))
    return folder


def _fill(store):
    store["/g/large"], store["/g/small"] = LARGE, SMALL
    store["/g/run[1]"], store["/g/run1"] = LARGE + 1, LARGE + 2
    store["/text"] = blosc2.SChunk(chunksize=400, data=b"some text" * 10)


@pytest.fixture
def stores(made, tmp_path):
    return shutil.copytree(made, tmp_path / "stores")


def _content(store):
    """The bytes of the files of a store."""
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("suffix", ["b2z", "b2d", "b2e"])
@pytest.mark.parametrize("there", [True, False])
def test_no_frame_has_the_name_of_a_store(stores, suffix, there):
    path = stores / f"{'a' if there else 'new'}.{suffix}"
    before = _content(stores)
    for mode in ("w-", "w"):
        with pytest.raises(ValueError, match=rf"\.{suffix}: .* suffixes of stores.*NAME\.b2nd"):
            to_b2nd(SMALL, path, mode=mode)
    with pytest.raises(ValueError, match="suffixes of stores"):
        b2nd_dask.create(path, (4,), "f8", mode="w")
    with pytest.raises(ValueError, match="suffixes of stores"):
        b2nd_dask.rechunk(stores / "a.b2d/g/large.b2nd", path, chunks=(60, 10), mode="w")
    with pytest.raises(ValueError, match="a store of" if there else "suffixes of stores"):
        to_b2nd(SMALL, path, mode="a", append_axis=0)
    assert _content(stores) == before
    with pytest.raises(ValueError, match="suffixes of stores"):
        to_b2nd(SMALL, f"memory://{path}", mode="w")
    with pytest.raises(ValueError, match="suffixes of stores"):
        to_b2nd(SMALL, f"ftp://host{path}?x=1", mode="w")


def test_members_of_a_folder_are_written_under_the_names_of_their_files(stores):
    store, before = stores / "a.b2d", _content(stores)
    for key in ("g/large", "g/new"):
        for mode, where in (
            ("w-", {}),
            ("w", {}),
            ("a", {"append_axis": 0}),
            ("r+", {"region": 0}),
        ):
            with pytest.raises(ValueError, match=rf"give {stores}/a\.b2d/{key}\.b2nd$"):
                to_b2nd(LARGE[0], store / key, mode=mode, **where)
        with pytest.raises(ValueError, match=rf"give .*{key}\.b2nd"):
            b2nd_dask.create(store / key, (4,), "f8")
    with pytest.raises(ValueError, match="members of a store are contiguous"):
        to_b2nd(LARGE, store / "g/new.b2nd", contiguous=False)
    assert _content(stores) == before
    to_b2nd(LARGE[0], store / "g/large.b2nd", mode="r+", region=3)
    to_b2nd(LARGE + 5, store / "g/new.b2nd")
    seal(store / "g/run1.b2nd")
    want = LARGE.copy()
    want[3] = LARGE[0]
    with blosc2.TreeStore(str(store), mode="r") as tree:
        assert {*tree.keys()} == {*KEYS, "/g", "/text", "/g/new"}
        assert same(tree["/g/large"][:], want)
        assert same(tree["/g/new"][:], LARGE + 5)
        assert same(tree["/g/run1"][:], LARGE + 2)


def test_no_file_hides_a_member_of_the_embed_store(stores):
    before = _content(stores)
    for path in ("a.b2d/g/small.b2nd", "a.b2d/g/small"):
        for mode, where in (
            ("w-", {}),
            ("w", {}),
            ("a", {"append_axis": 0}),
            ("r+", {"region": 0}),
        ):
            with pytest.raises(ValueError, match=r"/g/small is in the embed\.b2e of the store"):
                to_b2nd(SMALL, stores / path, mode=mode, **where)
    with pytest.raises(ValueError, match=r"b2nd_dask cannot change"):
        seal(stores / "a.b2d/g/small.b2nd")
    assert _content(stores) == before
    with blosc2.TreeStore(str(stores / "a.b2d"), mode="a") as tree:
        del tree["/g/small"]
    to_b2nd(SMALL + 1, stores / "a.b2d/g/small.b2nd")
    assert same(open_b2nd(stores / "a.b2d/g/small")[...], SMALL + 1)


def test_paths_with_dots_lead_to_members(stores):
    (stores / "elsewhere/deep").mkdir(parents=True)
    (stores / "a.b2d/link").symlink_to(stores / "elsewhere/deep")
    before = _content(stores)
    small = f"{stores}/elsewhere/../a.b2d/g/../g/small.b2nd"
    for path in (small, f"{stores}/a.b2d/no/../g/small.b2nd", f"{stores}/a.b2z/../a.b2d/g/small"):
        for mode, where in MODES:
            with pytest.raises(ValueError, match=r"/g/small is in the embed\.b2e of the store"):
                to_b2nd(SMALL, path, mode=mode, **where)
        with pytest.raises(ValueError, match=r"/g/small is in the embed\.b2e of the store"):
            seal(path)
    for mode in ("w-", "w"):
        with pytest.raises(ValueError, match="suffixes of stores"):
            to_b2nd(SMALL, f"{stores}/a.b2d/g/..", mode=mode)
    with pytest.raises(ValueError, match="a store of python-blosc2"):
        seal(f"{stores}/a.b2d/g/..")
    assert _content(stores) == before
    # the target of the link has another parent
    with pytest.raises(UnsupportedFrameError, match="link to a file outside of the store"):
        to_b2nd(SMALL, f"{stores}/a.b2d/link/../small.b2nd")
    (stores / "link").symlink_to(stores / "elsewhere/deep")
    for path in ("a.b2d/../out", "a.b2d/../link/../small"):
        to_b2nd(SMALL, f"{stores}/{path}", contiguous=False)
    assert same(from_b2nd(stores / "out").compute(), SMALL)
    assert same(from_b2nd(stores / "elsewhere/small").compute(), SMALL)


def test_groups_are_no_arrays(stores):
    store = stores / "a.b2d"
    (store / "g/large").mkdir()
    (store / "text").mkdir()
    before = _content(stores)
    with pytest.raises(ValueError, match=r"g\.b2nd: /g is a group of the store, with /g/"):
        to_b2nd(SMALL, store / "g.b2nd", mode="w")
    for key in ("/g/large", "/text"):
        with pytest.raises(ValueError, match=rf"{key} is a member of the store, not a group"):
            to_b2nd(SMALL, f"{store}{key}/x.b2nd")
    assert _content(stores) == before


@pytest.mark.parametrize("name", ["a.b2z", "a.b2e"])
def test_members_of_archives_and_embed_stores_are_only_read(stores, name):
    before = _content(stores)
    for path in (stores / name / "g/large", stores / name / "g/large.b2nd"):
        for mode in ("w-", "w"):
            with pytest.raises(ValueError, match=rf"member of the store .*{name}.*store\[KEY\] ="):
                to_b2nd(LARGE, path, mode=mode)
        with pytest.raises(ValueError, match=rf"member of the store .*{name}"):
            to_b2nd(LARGE, path, mode="stage", region=...)
        for change in (
            lambda path: to_b2nd(0, path, mode="r+", region=0),
            lambda path: to_b2nd(LARGE, path, mode="a", append_axis=0),
            seal,
            compact,
        ):
            with pytest.raises(ValueError, match=rf"{name}.*cannot change .*to_b2nd\(from_b2nd"):
                change(path)
    assert _content(stores) == before


def test_folders_with_names_of_stores_are_folders(tmp_path):
    for name in ("a.b2z", "a.b2d"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "x"
        to_b2nd(SMALL, path)
        to_b2nd(SMALL, path, mode="a", append_axis=0)
        seal(path)
        assert same(from_b2nd(path).compute(), np.concatenate([SMALL, SMALL]))
        for number in (1, 2):
            to_b2nd(SMALL + number, tmp_path / name / f"y{number}.b2nd")
        for pattern in ("y*", "y*.b2nd", "[y]?.b2nd", "**/y*"):
            x = from_b2nd(tmp_path / name / pattern)
            assert same(x.compute(), np.concatenate([SMALL + 1, SMALL + 2]))
        with pytest.raises(FileNotFoundError, match=rf"{name}/no\*: nothing matches"):
            from_b2nd(tmp_path / name / "no*")
    with blosc2.TreeStore(str(tmp_path / "b.b2d"), mode="w") as store:
        store["/y1"] = SMALL + 3
    x = from_b2nd(f"{tmp_path}/[ab].b2d/y*")
    assert same(x.compute(), np.concatenate([SMALL + 1, SMALL + 2, SMALL + 3]))


def _said(*arguments):
    """The line that a failing command prints."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    return result.output


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_commands_say_what_a_path_into_a_store_is(made, name):
    store = f"{made}/{name}"
    for command in ("info", "verify"):
        assert "no member /no in this store, which has /g/" in _said(command, f"{store}/no")
    listed = CliRunner().invoke(main, ("info", f"{store}/g"), catch_exceptions=False)
    assert listed.exit_code == 0
    assert "large" in listed.output
    if name != "a.b2d":  # there it is a folder
        said = _said("map", f"{store}/g")
        assert (
            said
            == f"Error: {store}: /g is a group; pass one of its members: /g/"
            + (said.partition(": /g/")[2])
        )
    for command in ("seal", "compact"):
        if name != "a.b2d":  # there they take all files
            assert "this is a store of python-blosc2, not a frame" in _said(command, store)
        said = _said(command, f"{store}/g/large")
        assert ("give " if name == "a.b2d" else "b2nd_dask cannot change") in said
        assert said.count(store) <= 2


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_verify_takes_all_arrays_of_a_store(made, name):
    result = CliRunner().invoke(main, ["verify", f"{made}/{name}"])
    # python-blosc2 writes no checksums
    assert result.exit_code == 3
    lines = result.output.splitlines()
    assert any("/g/large" in line and "no valid checksums" in line for line in lines)
    assert len(lines) > 2


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_keys_with_marks_of_patterns_come_first(made, name):
    for path in (
        f"{made}/{name}/g/run[1]",
        made / name / "g/run[1]",
        f"file://{made}/{name}/g/run[1]",
    ):
        assert same(from_b2nd(path).compute(), LARGE + 1)
    assert same(from_b2nd(f"{made}/{name}/g/run[0-9]").compute(), LARGE + 2)
    x = from_b2nd(made / name, component="/g/run[1]")
    assert x.name == from_b2nd(f"{made}/{name}/g/run[1]").name


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_patterns_for_members(made, name):
    x = from_b2nd(f"{made}/{name}/g/?[!m]*")
    assert same(x.compute(), np.concatenate([LARGE, LARGE + 2, LARGE + 1]))
    # an SChunk is no array, and `*` stays inside of a group
    for pattern in ("*", "**/*mall*/*", "g/*/*"):
        with pytest.raises(FileNotFoundError, match=r"no array matches /.*, which has /g/large"):
            from_b2nd(made / name / pattern)
    assert same(from_b2nd(made / name / "**/small").compute(), SMALL)
    every = f"{made}/[a-z]{name[1:]}/g/run1"
    assert same(from_b2nd(every, stack=True).compute(), (LARGE + 2)[None])
    with pytest.raises(FileNotFoundError, match=r"gone\*\.b2z: nothing matches"):
        from_b2nd(f"{made}/gone*.b2z/g/x")
    with pytest.raises(FileNotFoundError, match=r"gone\.b2z"):
        from_b2nd(f"{made}/gone.b2z/*")


def test_patterns_for_members_at_urls(made, s3_server, http_server):
    for path in made.rglob("*"):
        if path.is_file():
            name = f"p/{path.relative_to(made)}"
            s3_server.client.put_object(Bucket=s3_server.bucket, Key=name, Body=path.read_bytes())
    http_server.put("a.b2z", (made / "a.b2z").read_bytes())
    want = np.concatenate([LARGE + 2, LARGE + 1])
    for name in ("a.b2z", "a.b2d", "a.b2e"):
        url = f"s3://{s3_server.bucket}/p/{name}/g/run*"
        x = from_b2nd(url, storage_options=s3_server.storage_options)
        assert same(x.compute(scheduler="sync"), want)
    y = from_b2nd(f"{http_server.url}/a.b2z/g/run*")
    assert same(y.compute(scheduler="sync"), want)
    with pytest.raises(ValueError, match=r"pass a list of paths, STORE/KEY"):
        from_b2nd(f"{http_server.url}/a.b2d/g/run*")


@pytest.mark.parametrize("suffix", ["b2d", "b2z", "b2e"])
def test_keys_of_a_store_do_not_lead_out_of_it(tmp_path, suffix):
    """The author of a store must not choose which other files are read."""
    to_b2nd(SMALL, tmp_path / "private.b2nd")
    path = tmp_path / f"evil.{suffix}"
    embed = path if suffix == "b2e" else tmp_path / "evil.b2d/embed.b2e"
    embed.parent.mkdir(exist_ok=True)
    store = blosc2.EmbedStore(urlpath=str(embed), mode="w")
    store["/a"] = LARGE
    for key in ("/../private.b2nd", "/x.b2nd", "//a"):
        store._embed_map[key] = store._embed_map["/a"]
    store._save_metadata()
    if suffix == "b2z":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(embed, "embed.b2e")
            archive.write(tmp_path / "private.b2nd", "../outside.b2nd")
    for pattern in ("**", "*/*", "../*", "x*", "*/a"):
        with pytest.raises(
            UnsupportedFrameError, match=rf"evil\.{suffix}: .* whose keys do not open them: /[./xa]"
        ):
            from_b2nd(f"{path}/{pattern}")
    assert same(from_b2nd(f"{path}/[a-w]").compute(), LARGE)
    wrong = {m.key for m in list_members(Location.of(path)) if "key does not open it" in m.what}
    assert wrong - {"/../outside"} == {"/../private.b2nd", "/x.b2nd", "//a"}
    if suffix == "b2d":
        (path / "x.b2nd").symlink_to(tmp_path / "private.b2nd")
        with pytest.raises(UnsupportedFrameError, match="link to a file outside of the store"):
            from_b2nd(f"{path}/[x]")
        with pytest.raises(UnsupportedFrameError, match="whose keys do not open them"):
            from_b2nd(f"{path}/x*")


def test_keys_with_marks_of_queries_at_urls(tmp_path, http_server):
    store = blosc2.EmbedStore(urlpath=str(tmp_path / "q.b2e"), mode="w")
    store["/g/what?now"], store["/g/what"] = SMALL, SMALL + 1
    http_server.put("q.b2e", (tmp_path / "q.b2e").read_bytes())
    x = from_b2nd(f"{http_server.url}/q.b2e/g/*")
    assert same(x.compute(scheduler="sync"), np.concatenate([SMALL + 1, SMALL]))


@pytest.mark.parametrize("kind", ["memory", "s3"])
@pytest.mark.parametrize("suffix", ["b2z", "b2d", "b2e"])
def test_stores_with_question_marks_in_their_names(made, s3_server, kind, suffix):
    options = s3_server.storage_options if kind == "s3" else None
    base = f"s3://{s3_server.bucket}/why" if kind == "s3" else f"memory://{uuid.uuid4().hex}"
    store = f"{base}/what?now.{suffix}"
    files = list((made / f"a.{suffix}").rglob("*.b2*")) or [made / f"a.{suffix}"]
    for path in files:
        inner = str(path.relative_to(made)).removeprefix(f"a.{suffix}")
        # the second is a store that a wildcard would match, too
        for url in (f"{store}{inner}", f"{base}/what-now.{suffix}{inner}"):
            fs, name = fsspec.url_to_fs(url, **(options or {}))
            fs.pipe_file(name, path.read_bytes())
    members = list_members(Location.of(store, storage_options=options))
    assert {m.key for m in members} == {*KEYS, "/text"}
    x = from_b2nd(f"{store}/g/large", storage_options=options)
    assert same(x.compute(scheduler="sync"), LARGE)
    y = from_b2nd(f"{store}/g/run*", storage_options=options)
    assert same(y.compute(scheduler="sync"), np.concatenate([LARGE + 2, LARGE + 1]))
    z = from_b2nd(f"{base}/what?*.{suffix}/g/large", storage_options=options)
    assert same(z.compute(scheduler="sync"), LARGE)
    with pytest.raises(FileNotFoundError, match=rf"what\?now\.{suffix}: no member /g/none"):
        from_b2nd(f"{store}/g/none", storage_options=options)


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_stores_in_a_chain_of_urls(made, tmp_path, name):
    files = list((made / name).rglob("*.b2*")) or [made / name]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in files:
            archive.write(path, f"d/{path.relative_to(made)}")
    rest = f"::file://{tmp_path}/all.zip"
    members = list_members(Location.of(f"zip://d/{name}{rest}"))
    assert {m.key for m in members} == {*KEYS, "/text"}
    assert same(open_b2nd(f"zip://d/{name}/g/large{rest}")[...], LARGE)
    y = from_b2nd(f"zip://d/{name}/g/run*{rest}")
    assert same(y.compute(scheduler="sync"), np.concatenate([LARGE + 2, LARGE + 1]))


def test_a_group_may_have_the_name_of_its_store(made, s3_server):
    for path in (made / "a.b2d").rglob("*.b2*"):
        s3_server.put(f"own/a.b2d/{path.relative_to(made / 'a.b2d')}", path.read_bytes())
    s3_server.put("own/a.b2d/g/a.b2d/x.b2nd", (made / "a.b2d/g/large.b2nd").read_bytes())
    options = {"storage_options": s3_server.storage_options}
    keys = {m.key for m in list_members(Location.of(f"{s3_server.url}/own/a.b2d", **options))}
    assert keys >= {*KEYS, "/text", "/g/a.b2d/x"}
    assert "/x" not in keys


def test_what_writes_stage_in_a_store_is_no_member(stores, s3_server):
    b2nd_dask.create(stores / "a.b2d/g/run7.b2nd", LARGE.shape, "f8")
    (area,) = b2nd_dask.list_staging(stores / "a.b2d/g/run7.b2nd")
    # like the intermediate frames of a rechunk
    shutil.copy(stores / "a.b2d/g/large.b2nd", f"{area.path}/0123456789abcdef.b2nd")
    want = np.concatenate([LARGE, LARGE + 2, LARGE + 1])
    assert same(from_b2nd(f"{stores}/a.b2d/g/**/[lr0]*").compute(), want)
    hidden = [m for m in list_members(Location.of(stores / "a.b2d")) if "staging" in m.key]
    assert hidden == []
    for path in filter(Path.is_file, (stores / "a.b2d").rglob("*.b2*")):
        name = f"h/{path.relative_to(stores)}"
        s3_server.client.put_object(Bucket=s3_server.bucket, Key=name, Body=path.read_bytes())
    options = {"storage_options": s3_server.storage_options}
    url = f"s3://{s3_server.bucket}/h/a.b2d/g/**/[lr0]*"
    assert same(from_b2nd(url, **options).compute(scheduler="sync"), want)


@pytest.mark.parametrize("name", ["a.b2z", "a.b2d", "a.b2e"])
def test_a_store_is_listed_once_for_all_members(stores, monkeypatch, name):
    lists = []

    def counted(module, what):
        parse = getattr(module, what)
        monkeypatch.setattr(module, what, lambda reader: lists.append(what) or parse(reader))

    counted(embedded, "_read_list")
    counted(opened_store, "zip_members")
    with blosc2.open(str(stores / name), mode="a") as store:
        for number in range(20):
            store[f"/h/{number}"] = SMALL + number
    del store
    x = from_b2nd(stores / name / "h/*")
    want = np.concatenate([SMALL + number for number in range(20)])
    assert same(x.compute(), want)
    paths = [stores / name / f"h/{number}" for number in range(20)]
    assert same(from_b2nd(paths).compute(), want)
    assert sorted(lists) == ["_read_list"] + ["zip_members"] * (name == "a.b2z")


def test_folders_with_marks_of_patterns_come_first(tmp_path, monkeypatch):
    for number, name in enumerate(("run[1]", "run1")):
        (tmp_path / name).mkdir()
        to_b2nd(np.full(3, number), tmp_path / name / "x.b2nd")
    assert same(from_b2nd(f"{tmp_path}/run[1]/*.b2nd").compute(), np.full(3, 0))
    assert same(from_b2nd(f"{tmp_path}/run[0-9]/*.b2nd").compute(), np.full(3, 1))
    monkeypatch.chdir(tmp_path / "run[1]")
    assert same(from_b2nd("*.b2nd").compute(), np.full(3, 0))
    assert same(from_b2nd("../run1/*.b2nd").compute(), np.full(3, 1))


#: Paths through links that lead out of the store, and patterns that match them.
LINKS = ("link.b2nd", "link", "dir/x.b2nd", "dir/x", "dir/../x.b2nd", "g/../link.b2nd")
PATTERNS = ("*.b2nd", "l*.b2nd", "*/x.b2nd", "dir/*.b2nd", "**/*.b2nd")


@pytest.fixture
def linked(stores):
    """A store with links to a file and to a folder outside, and to a folder inside."""
    store, outside = stores / "a.b2d", stores / "outside"
    (outside / "dir").mkdir(parents=True)
    for name in ("x.b2nd", "dir/x.b2nd"):
        to_b2nd(LARGE, outside / name)
    (store / "link.b2nd").symlink_to(outside / "x.b2nd")
    (store / "dir").symlink_to(outside / "dir")
    (store / "inner").symlink_to("g")
    (stores / "same.b2d").symlink_to(store)
    return store


@pytest.mark.parametrize("name", [*LINKS, *PATTERNS])
def test_links_out_of_a_store_are_not_read(linked, name):
    """The author of a store must not choose which other files are read."""
    message = "a.b2d: /.* is a link to a file outside of the store"
    with pytest.raises(UnsupportedFrameError, match=message):
        from_b2nd(f"{linked}/{name}")
    if name in LINKS:
        for path in (linked / name, linked.parent / "same.b2d" / name, f"file://{linked}/{name}"):
            with pytest.raises(UnsupportedFrameError, match="link to a file outside of the store"):
                open_b2nd(path)


def test_links_inside_of_a_store_are_read(linked):
    for path in ("a.b2d/inner/large.b2nd", "same.b2d/g/large.b2nd", "a.b2d/inner/*.b2nd"):
        assert from_b2nd(linked.parent / path).shape[1:] == LARGE.shape[1:]
    # the user's own path leads out of the store
    assert same(open_b2nd(f"{linked}/../outside/x.b2nd")[...], LARGE)
    (linked / "embed.b2e").unlink()
    assert same(open_b2nd(linked / "link.b2nd")[...], LARGE)


@pytest.mark.parametrize("name", [*LINKS[2:], "link.b2nd", "dir/new.b2nd", "same"])
def test_nothing_is_written_through_links_out_of_a_store(linked, name):
    path = linked / name if name != "same" else linked.parent / "same.b2d/link.b2nd"
    path, before = str(path), _content(linked.parent)
    calls = [lambda mode=mode, at=at: to_b2nd(LARGE, path, mode=mode, **at) for mode, at in MODES]
    calls += [
        lambda: to_b2nd(LARGE, path, mode="stage", region=...),
        lambda: b2nd_dask.create(path, LARGE.shape, "f8", mode="w"),
        lambda: b2nd_dask.commit(path),
        lambda: b2nd_dask.rechunk(linked / "g/large.b2nd", path, chunks=(60, 10), mode="w"),
        lambda: seal(path),
        lambda: compact(path),
    ]
    for call in calls:
        with pytest.raises(UnsupportedFrameError, match="link to a file outside of the store"):
            call()
    assert _content(linked.parent) == before
    assert (linked / "link.b2nd").is_symlink()


def _embed_store(path, keys):
    """A store of a few hundred bytes, whose keys all have the bytes of one array."""
    store = blosc2.EmbedStore(urlpath=str(path), mode="w")
    store["/k"] = SMALL
    entry = store._embed_map.pop("/k")
    for key in keys:
        store._embed_map[key] = entry
    store._save_metadata()
    return path


def test_numbers_of_many_digits_in_names():
    """More digits than `int` converts."""
    nines = "9" * 4090
    names = [f"/r{nines}", f"/r1{nines}", "/r10", "/r2", "/r٣", "/r0002"]
    want = ["/r0002", "/r2", "/r٣", "/r10", f"/r{nines}", f"/r1{nines}"]
    assert sorted(names, key=natural_key) == want
    nines = "9" * 5000
    assert sorted([f"a{nines}", "a1", f"a0{nines}"], key=natural_key)[0] == "a1"


def test_keys_that_take_long_to_match_are_refused(tmp_path):
    """Otherwise their copies take hours, for a file of some hundred bytes."""
    for key in ("/" + "a/" * 5000 + "x", "/" + "y" * 5000):
        store = _embed_store(tmp_path / "long.b2e", [key, "/x"])
        with pytest.raises(UnsupportedFrameError, match=r"long\.b2e: a key has .* at most 4096"):
            from_b2nd(f"{store}/**/x")
        assert same(open_b2nd(store, component="x")[...], SMALL)
        assert same(open_b2nd(store, component=key)[...], SMALL)
        store.unlink()


@pytest.mark.parametrize("pattern", ["**/**/**/**/**/x", "**/a/**/a/**/x", "**", "a/*/**/x"])
def test_parts_of_any_number(tmp_path, pattern):
    deep = "/" + "a/" * 200 + "x"
    store = _embed_store(tmp_path / "deep.b2e", [deep, "/a/b/a/x", "/a/a"])
    assert len(from_b2nd(f"{store}/{pattern}", stack=True)) == 2 + (pattern == "**")
    with pytest.raises(FileNotFoundError, match="no array matches"):
        from_b2nd(f"{store}/{pattern}/z")


def test_only_members_that_match_are_opened(tmp_path, monkeypatch):
    """The array of many keys is opened once."""
    opened = []
    known = listing.what_of
    monkeypatch.setattr(listing, "what_of", lambda reader: opened.append(1) or known(reader))
    store = _embed_store(tmp_path / "many.b2e", [f"/n{i}" for i in range(300)])
    with pytest.raises(FileNotFoundError, match="no array matches"):
        from_b2nd(f"{store}/z*")
    assert opened == []
    assert from_b2nd(f"{store}/n1?", stack=True).shape == (10, 5)
    assert opened == [1]
    assert len(list_members(Location.of(store))) == 300
    assert opened == [1, 1]


def test_keys_are_shown_in_one_line_without_codes_of_terminals(tmp_path):
    """The author of a store must not write to the terminal of its reader."""
    bad, long = "/x\n\x1b[31mred\x9b\u202e", "/" + "n" * 100_000
    store = _embed_store(tmp_path / "bad.b2e", [bad, long, "/é"])
    shown = [CliRunner().invoke(main, ["info", str(store)]).output]
    opened = open_b2nd(store, component=bad)
    assert same(opened[...], SMALL)
    shown.append(opened.path)
    assert r"/x\n\x1b[31mred\x9b\u202e" in shown[1]
    calls = (lambda: open_b2nd(store, component="no"), lambda: open_b2nd(store, component=bad[:-1]))
    for call in calls:
        with pytest.raises(FileNotFoundError, match="which has") as caught:
            call()
        assert "é" in str(caught.value)
        shown.append(str(caught.value))
    for text in shown:
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
        assert r"\x1b[31mred" in text
        assert len(text) < 3000
    assert all("\n" not in text for text in shown[1:])
