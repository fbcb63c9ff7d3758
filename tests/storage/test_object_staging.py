"""Staging, joining and publishing frames in object stores, without dask."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from b2nd_dask.storage import Location, Run
from b2nd_dask.storage.write.object_store import PIECE_NBYTES
from tests.storage.staged_frames import HEAD, TAIL, incompressible, make, publish, staged_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_recording import RecordingS3
    from tests.servers import HttpServer

pytest_plugins = ["tests.s3_recording"]


@pytest.fixture
def memory(name: str) -> Location:
    return Location.of(f"memory://{name}")


def memory_names(name: str) -> list[str]:
    return fsspec.filesystem("memory").find(f"/{name}") + [
        path for path in fsspec.filesystem("memory").store if path.startswith(f"/{name}.")
    ]


class TestMemory:
    def test_a_frame(self, memory: Location, name: str) -> None:
        objects = [[b"ab", b"cde"], [incompressible(PIECE_NBYTES + 5)], [b"f"]]
        expected = publish(make(memory), objects)
        assert fsspec.filesystem("memory").cat_file(name) == expected
        assert memory_names(name) == [f"/{name}"]

    def test_the_old_object_stays_until_the_new_one_is_whole(
        self, memory: Location, name: str
    ) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file(name, b"old")
        staging = make(memory, replace=True)
        staging.prepare()
        run = staging.append([b"new"])[0]
        placement = staging.join(*staged_at([Run(run.part, 0, 4)]))
        with pytest.raises(OSError, match="not have the written length"):
            staging.publish(placement, HEAD, TAIL)
        staging.discard()
        assert fs.cat_file(name) == b"old"
        assert memory_names(name) == [f"/{name}"]

    def test_brackets_and_stars_in_a_name(self, name: str) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file(f"{name}-a", b"other")
        location = Location.of(f"memory://{name}-[a]*")
        expected = publish(make(location), [[b"ab"]])
        assert fs.cat_file(f"{name}-[a]*") == expected
        assert fs.cat_file(f"{name}-a") == b"other"
        staging = make(Location.of(f"memory://{name}-*"))
        staging.prepare()
        staging.discard()
        assert fs.find("/").count(f"/{name}-a") == 1


@pytest.mark.parametrize("name", ["a.b2nd", "a?b.b2nd"])
def test_what_lies_inside_is_in_the_staging_area(name: str) -> None:
    staging = make(Location.of(f"memory://{name}"))
    assert staging.inside("c.b2nd").url == f"memory:/{staging.area().folder}/c.b2nd"


@pytest.mark.parametrize("large", [0, 6 << 20])
@pytest.mark.parametrize("kind", ["s3", "memory"])
def test_chunks_of_which_others_take_the_place(
    request: pytest.FixtureRequest, kind: str, large: int
) -> None:
    """As in a resumed write with another memory limit, whose regions overlap the earlier ones."""
    location: Location = request.getfixturevalue(kind)
    staging = make(location)
    staging.prepare()
    chunks = [incompressible(n + large * (n > 4), n) for n in range(1, 9)]
    earlier, later = staging.append(chunks[:5]), staging.append(chunks[5:])
    used = [earlier[1], later[2], earlier[3], later[0], earlier[4]]
    placement = staging.join(*staged_at(used))
    staging.publish(placement, HEAD, TAIL)
    staging.discard()
    fs, path = fsspec.url_to_fs(location.urlpath, **(location.storage_options or {}))
    data = fs.cat_file(path)
    assert len(data) == len(HEAD) + placement.data_nbytes + len(TAIL)
    expected = [chunks[i] for i in (1, 7, 3, 5, 4)]
    starts = (placement.positions + len(HEAD)).tolist()
    ends = zip(starts, expected, strict=True)
    assert [data[at : at + len(chunk)] for at, chunk in ends] == expected


def names_at(location: Location) -> list[str]:
    """What is there: the target, its members, and all that is staged."""
    fs, path = fsspec.url_to_fs(location.urlpath, **(location.storage_options or {}))
    fs.invalidate_cache()
    parent, _, own = path.rpartition("/")
    return sorted(found[len(parent) + 1 :] for found in fs.find(parent or "/") if own in found)


@pytest.fixture(params=["s3", "memory"])
def location(request: pytest.FixtureRequest) -> Location:
    location: Location = request.getfixturevalue(request.param)
    return location


@pytest.mark.parametrize("sparse", [False, True])
class TestEveryStore:
    def test_discard_removes_everything(self, location: Location, sparse: bool) -> None:
        staging = make(location, sparse=sparse)
        staging.prepare()
        staging.append([b"a", b"b"])
        assert names_at(location)
        staging.discard()
        assert names_at(location) == []
        staging.discard()

    def test_a_task_that_outlives_the_write_leaves_nothing(
        self, location: Location, sparse: bool
    ) -> None:
        staging = make(location, sparse=sparse)
        staging.prepare()
        staging.discard()
        with pytest.raises(FileNotFoundError, match=r"given up.*\.b2nd"):
            staging.append([b"a"])
        assert names_at(location) == []

    def test_a_target_that_is_taken(self, location: Location, sparse: bool) -> None:
        publish(make(location), [[b"a"]])
        with pytest.raises(FileExistsError, match=r"exists already.*\.b2nd"):
            make(location, sparse=sparse).prepare()
        assert len(names_at(location)) == 1

    def test_several_objects_are_never_replaced(self, location: Location, sparse: bool) -> None:
        publish(make(location, sparse=True), [[b"a", b"b"]])
        before = names_at(location)
        with pytest.raises(FileExistsError, match=r"remove.*first.*\.b2nd"):
            make(location, sparse=sparse, replace=True).prepare()
        assert names_at(location) == before

    def test_it_pickles_small_and_shows_no_secrets(self, location: Location, sparse: bool) -> None:
        staging = make(location, sparse=sparse)
        pickled = pickle.dumps(staging)
        assert len(pickled) < 1000
        assert pickle.loads(pickled) == staging
        assert "hunter2" not in repr(staging) + staging.label


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("method", "sparse"), [("fork", True), ("fork", False), ("forkserver", False)]
)
def test_other_processes_append(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
    method: str,
    sparse: bool,
) -> None:
    staging = make(s3, sparse=sparse)
    staging.prepare()
    staging.append([b"before the fork"])
    with ProcessPoolExecutor(2, get_context(method)) as pool:
        runs = list(pool.map(staging.append, [[b"a", b"b"], [b"c"]]))
    assert [len(found) for found in runs] == [2, 1]
    assert len({run.part for found in runs for run in found}) == (3 if sparse else 2)
    staging.append([b"after it"])
    staging.discard()
    assert recording_s3.keys(name) == []


class TestSparse:
    def test_the_members(self, location: Location, name: str) -> None:
        publish(make(location, sparse=True), [[b"a", b"bb"], [b"ccc"]])
        members = ["00000000.chunk", "00000001.chunk", "00000002.chunk", "chunks.b2frame"]
        assert names_at(location) == [f"{name}/{member}" for member in members]
        fs, path = fsspec.url_to_fs(location.urlpath, **(location.storage_options or {}))
        assert fs.cat_file(f"{path}/00000002.chunk") == b"ccc"
        assert fs.cat_file(f"{path}/chunks.b2frame") == HEAD + TAIL

    def test_chunks_are_copied_by_the_server(
        self,
        recording_s3: RecordingS3,
        s3: Location,
    ) -> None:
        publish(make(s3, sparse=True), [[b"a", b"bb"], [b"ccc"]])
        assert recording_s3.count("CopyObject") == 3
        assert recording_s3.sent("GetObject") == 0

    def test_a_commit_that_fails_leaves_nothing(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        staging = make(s3, sparse=True)
        recording_s3.refused = "CopyObject"
        with pytest.raises(PermissionError):
            publish(staging, [[b"a", b"bb"]])
        assert recording_s3.keys(f"{name}/")
        staging.discard()
        assert recording_s3.keys(name) == []

    def test_two_writers_do_not_mix(self, location: Location) -> None:
        first, second = make(location, sparse=True), make(location, sparse=True)
        second.prepare()
        publish(first, [[b"a", b"bb"]])
        before = names_at(location)
        run = second.append([b"z"])[0]
        placement = second.join(*staged_at([Run(run.part, 0, 1)]))
        with pytest.raises(FileExistsError, match="another writer"):
            second.publish(placement, HEAD, TAIL)
        second.discard()
        assert names_at(location) == [n for n in before if second.key not in n]


class NoCopies(MemoryFileSystem):
    """Lacks copies, as many of fsspec's file systems do."""

    protocol = "nocopies"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("nocopies://")))

    def cp_file(self, path1: str, path2: str, **_: object) -> None:
        raise NotImplementedError


def test_a_sparse_frame_in_a_store_without_copies(name: str) -> None:
    fsspec.register_implementation("nocopies", NoCopies, clobber=True)
    publish(make(Location.of(f"nocopies://{name}"), sparse=True), [[b"a", b"bb"]])
    assert fsspec.filesystem("memory").cat_file(f"{name}/00000001.chunk") == b"bb"


class OneByOne(MemoryFileSystem):
    """Removes one path a call, as that of WebHDFS."""

    protocol = "onebyone"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("onebyone://")))

    def rm(self, path: str, **_: object) -> None:
        if not isinstance(path, str):
            raise TypeError("quote_from_bytes() expected bytes")
        super().rm_file(path)


def test_a_store_that_removes_one_path_a_call(name: str) -> None:
    fsspec.register_implementation("onebyone", OneByOne, clobber=True)
    publish(make(Location.of(f"onebyone://{name}")), [[b"ab"]] * 40)
    assert memory_names(name) == [f"/{name}"]


def test_a_web_server_cannot_be_written(http_server: HttpServer) -> None:
    staging = make(Location.of(f"{http_server.url}/a.b2nd"))
    with pytest.raises(OSError, match=r"web servers are read-only.*a\.b2nd"):
        staging.prepare()
    assert http_server.requests == []


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_archive_cannot_be_written(tmp_path: Path, form: str) -> None:
    archive = shutil.make_archive(str(tmp_path / "archive"), form, tmp_path)
    with pytest.raises(OSError, match=rf"cannot write to this store.*{form}://a\.b2nd"):
        make(Location.of(f"{form}://a.b2nd::{archive}")).prepare()


class Forgetful(AbstractFileSystem):
    """Has no way to write, which fsspec's buffered files take for success."""

    protocol = "forgetful"

    def info(self, path: str, **_: object) -> dict[str, object]:
        raise FileNotFoundError(path)


def test_a_store_in_which_nothing_stays() -> None:
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    with pytest.raises(OSError, match=r"forgetful://a\.b2nd"):
        make(Location.of("forgetful://a.b2nd")).prepare()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_file_system_with_folders(tmp_path: Path, sparse: bool) -> None:
    location = Location.of(f"simplecache::file://{tmp_path}/a.b2nd")
    abandoned = make(location, sparse=sparse)
    abandoned.prepare()
    abandoned.append([b"a"])
    abandoned.discard()
    assert list(tmp_path.iterdir()) == []
    expected = publish(make(location, sparse=sparse), [[b"a", b"bb"]])
    assert [path.name for path in tmp_path.iterdir()] == ["a.b2nd"]
    if sparse:
        assert (tmp_path / "a.b2nd" / "00000001.chunk").read_bytes() == b"bb"
    else:
        assert (tmp_path / "a.b2nd").read_bytes() == expected


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"check that the bucket or folder exists.*a\.b2nd"):
        make(Location.of(f"simplecache::file://{tmp_path}/nothing/a.b2nd")).prepare()


@pytest.mark.parametrize("is_closed", [False, True])
def test_joined_step_by_step_in_an_area_that_another_client_closes(
    memory: Location, name: str, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """As in Google's stores, which join 32 objects at once."""
    left: list[str] = []

    def merge(fs: MemoryFileSystem, path: str, paths: list[str]) -> None:
        joined = b"".join(fs.cat_file(each) for each in paths)
        # gives up while the last step before the target is under way
        listed = fs.find(path.rpartition("/")[0]) if is_closed and len(paths) < 32 else []
        fs.pipe_file(path, joined)
        left.extend([path] if listed else [])
        for each in listed:
            fs.rm_file(each)

    monkeypatch.setattr(MemoryFileSystem, "merge", merge, raising=False)
    monkeypatch.setattr(MemoryFileSystem, "protocol", ("memory", "gs"))
    objects = [[b"%d " % number] for number in range(40)]
    if not is_closed:
        expected = publish(make(memory), objects)
        assert fsspec.filesystem("memory").cat_file(name) == expected
        assert memory_names(name) == [f"/{name}"]
        return
    with pytest.raises(FileNotFoundError):
        publish(make(memory), objects)
    assert left
    assert memory_names(name) == []


@pytest.mark.parametrize("refusal", [None, OSError, NotImplementedError])
def test_chunks_of_which_others_take_the_place_in_googles_stores(
    memory: Location, name: str, monkeypatch: pytest.MonkeyPatch, refusal: type[Exception] | None
) -> None:
    """They join whole objects only, and in buckets of some kinds none."""

    def merge(fs: MemoryFileSystem, path: str, paths: list[str]) -> None:
        if refusal is not None:
            raise refusal("not in this bucket")
        fs.pipe_file(path, b"".join(map(fs.cat_file, paths)))

    monkeypatch.setattr(MemoryFileSystem, "merge", merge, raising=False)
    monkeypatch.setattr(MemoryFileSystem, "protocol", ("memory", "gs"))
    staging = make(memory)
    staging.prepare()
    earlier, later = staging.append([b"old ", b"kept"]), staging.append([b"new "])
    staging.publish(staging.join(*staged_at([*later, earlier[1]])), HEAD, TAIL)
    staging.discard()
    assert fsspec.filesystem("memory").cat_file(name) == HEAD + b"new kept" + TAIL
    assert memory_names(name) == [f"/{name}"]
