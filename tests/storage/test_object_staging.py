"""Staging, joining and publishing frames in object stores, without dask."""

from __future__ import annotations

import pickle
import random
import shutil
import traceback
import uuid
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.storage import Location, Run, StagedChunks, staging_for
from b2nd_dask.storage.object_store import PIECE_NBYTES
from b2nd_dask.storage.s3_join import (
    SMALL_FRAME_NBYTES,
    Limits,
    ServerJoin,
    nbytes_of,
    plan_parts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from b2nd_dask.storage.object_staging import BaseObjectStaging
    from tests.s3_recording import RecordingS3
    from tests.servers import HttpServer

pytest_plugins = ["tests.s3_recording"]

MIB = 1 << 20
HEAD, TAIL = b"H" * 300, b"T" * 700


def incompressible(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def make(location: Location, *, sparse: bool = False, replace: bool = False) -> BaseObjectStaging:
    return staging_for(location, sparse=sparse, replace=replace, header_len=len(HEAD))


def publish(staging: BaseObjectStaging, objects: Sequence[Sequence[bytes]]) -> bytes:
    """Write chunks, those of one object together; gives the bytes that must come out."""
    staging.prepare()
    runs = [run for chunks in objects for run in staging.append(chunks)]
    names = tuple(dict.fromkeys(run.part for run in runs))
    joined = staging.join(
        StagedChunks(
            names,
            np.array([names.index(run.part) for run in runs], np.int64),
            np.array([run.start for run in runs], np.int64),
            np.array([run.stop - run.start for run in runs], np.int64),
        )
    )
    data = bytearray(joined.data_nbytes)
    flat = [chunk for chunks in objects for chunk in chunks]
    for position, chunk in zip(joined.positions.tolist(), flat, strict=True):
        data[position : position + len(chunk)] = chunk
    staging.publish(joined, HEAD, TAIL)
    return HEAD + bytes(data) + TAIL


@pytest.fixture
def name() -> str:
    return f"{uuid.uuid4().hex}.b2nd"


@pytest.fixture
def s3(recording_s3: RecordingS3, name: str) -> Location:
    return Location.of(f"{recording_s3.url}/{name}", storage_options=recording_s3.storage_options)


@pytest.fixture
def memory(name: str) -> Location:
    return Location.of(f"memory://{name}")


def memory_names(name: str) -> list[str]:
    return fsspec.filesystem("memory").find(f"/{name}") + [
        path for path in fsspec.filesystem("memory").store if path.startswith(f"/{name}.")
    ]


class TestS3:
    def test_a_small_frame_is_one_request(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        expected = publish(make(s3), [[b"ab", b"cde"], [b"f"], [b"ghi"]])
        assert recording_s3.data(name) == expected
        assert recording_s3.count("CreateMultipartUpload") == 0
        assert recording_s3.keys(name) == [name]

    def test_large_objects_are_joined_by_the_server(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        objects = [
            [incompressible(3 * MIB, seed) + b"x", incompressible(4 * MIB, 100 + seed)]
            for seed in range(5)
        ]
        total = sum(len(chunk) for chunks in objects for chunk in chunks)
        expected = publish(make(s3), objects)
        assert recording_s3.data(name) == expected
        # the first object cannot be divided into 5 MiB for the header and 5 MiB for a part
        assert recording_s3.count("UploadPartCopy") == 4
        fetched = recording_s3.sent("GetObject")
        assert fetched <= 8 * MIB
        assert recording_s3.received("UploadPart") <= fetched + len(HEAD + TAIL) + 1000
        assert total > 30 * MIB
        assert recording_s3.keys(name) == [name]
        assert recording_s3.uploads() == []

    def test_only_the_rest_of_the_first_part_is_fetched(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        expected = publish(make(s3), [[incompressible(18 * MIB)]])
        assert recording_s3.data(name) == expected
        assert recording_s3.count("UploadPartCopy") == 1
        assert recording_s3.sent("GetObject") == Limits().min_part - len(HEAD)

    def test_small_objects_are_collected_in_pieces(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        large = [incompressible(6 * MIB, seed) for seed in range(2)]
        small = [incompressible(3 * MIB, 10 + seed) for seed in range(8)]
        objects = [[large[0]], *([chunk] for chunk in small), [large[1]]]
        expected = publish(make(s3), objects)
        assert recording_s3.data(name) == expected
        assert recording_s3.count("UploadPartCopy") == 2
        assert recording_s3.sent("GetObject") == sum(map(len, small))
        largest = max(r.received for r in recording_s3.requests if r.action == "UploadPart")
        assert largest < PIECE_NBYTES + 3 * MIB

    def test_more_objects_than_an_upload_has_parts(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        staging = make(s3)
        staging.prepare()
        area = staging.area()
        chunks = [incompressible(5 * MIB + seed, seed) for seed in range(6)]
        paths = [area.put(f"{i}", chunk) for i, chunk in enumerate(chunks)]
        runs = [Run(path, 0, len(chunk)) for path, chunk in zip(paths, chunks, strict=True)]
        recording_s3.reset()
        join = ServerJoin(area, Limits(max_part=11 * MIB, max_parts=5))
        join.publish(HEAD, runs, TAIL, replace=False)
        staging.discard()
        assert recording_s3.data(name) == HEAD + b"".join(chunks) + TAIL
        assert recording_s3.count("CompleteMultipartUpload") == 4
        assert recording_s3.sent("GetObject") < 6 * MIB
        assert recording_s3.keys(name) == [name]

    def test_a_frame_too_large_for_the_store(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        staging = make(s3)
        staging.prepare()
        area = staging.area()
        chunk = incompressible(6 * MIB)
        runs = [Run(area.put(f"{i}", chunk), 0, len(chunk)) for i in range(4)]
        join = ServerJoin(area, Limits(max_part=6 * MIB, max_parts=3))
        with pytest.raises(OSError, match=rf"larger dask blocks.*{name}"):
            join.publish(HEAD, runs, TAIL, replace=False)
        staging.discard()
        assert recording_s3.keys(name) == []

    def test_checksums_of_parts_are_given_back(
        self,
        recording_s3: RecordingS3,
        name: str,
    ) -> None:
        options = {
            **recording_s3.storage_options,
            "s3_additional_kwargs": {"ChecksumAlgorithm": "SHA256"},
        }
        location = Location.of(f"{recording_s3.url}/{name}", storage_options=options)
        expected = publish(make(location), [[incompressible(18 * MIB)]])
        assert recording_s3.data(name) == expected

    @pytest.mark.parametrize("nbytes", [10, SMALL_FRAME_NBYTES])
    @pytest.mark.parametrize("conditional", [True, False])
    def test_an_object_made_meanwhile_is_kept(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
        nbytes: int,
        conditional: bool,
    ) -> None:
        """Made after the last look, and before the request that would replace it."""
        recording_s3.conditional = conditional
        staging = make(s3)
        staging.prepare()
        area = staging.area()
        runs = [Run(area.put("a", incompressible(nbytes)), 0, nbytes)]
        recording_s3.server.put(name, b"theirs")
        with pytest.raises(FileExistsError, match=name):
            ServerJoin(area).publish(HEAD, runs, TAIL, replace=False)
        staging.discard()
        assert recording_s3.data(name) == b"theirs"
        assert recording_s3.keys(name) == [name]
        assert recording_s3.uploads() == []

    @pytest.mark.parametrize("nbytes", [10, SMALL_FRAME_NBYTES])
    def test_a_server_without_conditional_writes(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
        nbytes: int,
    ) -> None:
        recording_s3.conditional = False
        expected = publish(make(s3), [[incompressible(nbytes)]])
        assert recording_s3.data(name) == expected

    def test_the_request_that_makes_the_object_is_conditional(
        self,
        recording_s3: RecordingS3,
        s3: Location,
    ) -> None:
        publish(make(s3), [[incompressible(18 * MIB)]])
        publish(make(s3, replace=True), [[incompressible(18 * MIB)]])
        completed = [r for r in recording_s3.requests if r.action == "CompleteMultipartUpload"]
        assert [request.condition for request in completed] == ["*", None]

    @pytest.mark.parametrize("action", ["UploadPartCopy", "CompleteMultipartUpload"])
    def test_a_join_that_fails_leaves_the_old_object(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
        action: str,
    ) -> None:
        recording_s3.server.put(name, b"old")
        staging = make(s3, replace=True)
        recording_s3.refused = action
        with pytest.raises(PermissionError) as caught:
            publish(staging, [[incompressible(18 * MIB)]])
        shown = "".join(traceback.format_exception(caught.value))
        assert f"s3://frames/{name}" in shown
        assert "hunter2" not in shown
        assert recording_s3.uploads() == []
        staging.discard()
        assert recording_s3.data(name) == b"old"
        assert recording_s3.keys(name) == [name]

    def test_discard_gives_up_the_upload_of_a_process_that_was_killed(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        staging = make(s3)
        staging.prepare()
        # what the process could no longer do
        recording_s3.refused = "AbortMultipartUpload"
        with pytest.raises(PermissionError):
            ServerJoin(staging.area()).publish(
                b"H" * SMALL_FRAME_NBYTES, [Run("frames/nothing", 0, 6 * MIB)], TAIL, replace=False
            )
        assert recording_s3.uploads() == [name]
        recording_s3.reset()
        staging.discard()
        assert recording_s3.uploads() == []
        assert recording_s3.keys(name) == []

    def test_a_bucket_that_does_not_exist(self, recording_s3: RecordingS3) -> None:
        location = Location.of("s3://nowhere/a.b2nd", storage_options=recording_s3.storage_options)
        with pytest.raises(FileNotFoundError, match=r"such a bucket.*s3://nowhere/a\.b2nd"):
            make(location).prepare()
        assert "nowhere" not in str(recording_s3.server.client.list_buckets()["Buckets"])

    def test_a_version_is_no_target(
        self,
        recording_s3: RecordingS3,
        s3: Location,
        name: str,
    ) -> None:
        options = {**recording_s3.storage_options, "version_aware": True}
        url = f"{recording_s3.url}/{name}?versionId=abc"
        with pytest.raises(ValueError, match="version"):
            make(Location.of(url, storage_options=options)).prepare()


Uploads = st.lists(
    st.one_of(
        st.integers(0, 30).map(bytes),
        st.integers(1, 30).map(lambda n: Run("a", 7, 7 + n)),
    ),
    min_size=1,
    max_size=30,
)


@given(Uploads)
def test_parts_are_the_sources_in_order_and_none_too_small(sources: list[bytes | Run]) -> None:
    limits = Limits(min_part=5)

    def spread(source: bytes | Run) -> list[object]:
        if isinstance(source, Run):
            return [(source.part, i) for i in range(source.start, source.stop)]
        return list(source)

    parts = plan_parts(sources, limits)
    flat = [item for part in parts for source in part for item in spread(source)]
    assert flat == [item for source in sources for item in spread(source)]
    assert all(sum(map(nbytes_of, part)) >= 5 for part in parts[:-1])


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
        joined = staging.join(
            StagedChunks((run.part,), np.zeros(1, int), np.zeros(1, int), np.array([4]))
        )
        with pytest.raises(OSError, match="not the bytes"):
            staging.publish(joined, HEAD, TAIL)
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


class Places:
    """The stores that all forms write to."""

    @staticmethod
    def names(location: Location) -> list[str]:
        """What is there: the target, its members, and all that is staged."""
        fs, path = fsspec.url_to_fs(location.urlpath, **(location.storage_options or {}))
        fs.invalidate_cache()
        parent, _, own = path.rpartition("/")
        return sorted(found[len(parent) + 1 :] for found in fs.find(parent or "/") if own in found)


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> Location:
    location: Location = request.getfixturevalue(request.param)
    return location


@pytest.mark.parametrize("sparse", [False, True])
class TestEveryStore:
    def test_discard_removes_everything(self, place: Location, sparse: bool) -> None:
        staging = make(place, sparse=sparse)
        staging.prepare()
        staging.append([b"a", b"b"])
        assert Places.names(place)
        staging.discard()
        assert Places.names(place) == []
        staging.discard()

    def test_a_task_that_outlives_the_write_leaves_nothing(
        self, place: Location, sparse: bool
    ) -> None:
        staging = make(place, sparse=sparse)
        staging.prepare()
        staging.discard()
        with pytest.raises(FileNotFoundError, match=r"given up.*\.b2nd"):
            staging.append([b"a"])
        assert Places.names(place) == []

    def test_a_target_that_is_taken(self, place: Location, sparse: bool) -> None:
        publish(make(place), [[b"a"]])
        with pytest.raises(FileExistsError, match=r"something is there already.*\.b2nd"):
            make(place, sparse=sparse).prepare()
        assert len(Places.names(place)) == 1

    def test_several_objects_are_never_replaced(self, place: Location, sparse: bool) -> None:
        publish(make(place, sparse=True), [[b"a", b"b"]])
        before = Places.names(place)
        with pytest.raises(FileExistsError, match=r"remove.*first.*\.b2nd"):
            make(place, sparse=sparse, replace=True).prepare()
        assert Places.names(place) == before

    def test_it_pickles_small_and_shows_no_secrets(self, place: Location, sparse: bool) -> None:
        staging = make(place, sparse=sparse)
        pickled = pickle.dumps(staging)
        assert len(pickled) < 1000
        assert pickle.loads(pickled) == staging
        assert "hunter2" not in repr(staging) + staging.label


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("method", "sparse"), [("fork", True), ("fork", False), ("spawn", False)])
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
    def test_the_members(self, place: Location, name: str) -> None:
        publish(make(place, sparse=True), [[b"a", b"bb"], [b"ccc"]])
        members = ["00000000.chunk", "00000001.chunk", "00000002.chunk", "chunks.b2frame"]
        assert Places.names(place) == [f"{name}/{member}" for member in members]
        fs, path = fsspec.url_to_fs(place.urlpath, **(place.storage_options or {}))
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

    def test_two_writers_do_not_mix(self, place: Location) -> None:
        first, second = make(place, sparse=True), make(place, sparse=True)
        second.prepare()
        publish(first, [[b"a", b"bb"]])
        before = Places.names(place)
        run = second.append([b"z"])[0]
        joined = second.join(
            StagedChunks((run.part,), np.zeros(1, int), np.zeros(1, int), np.array([1]))
        )
        with pytest.raises(FileExistsError, match="another writer"):
            second.publish(joined, HEAD, TAIL)
        second.discard()
        assert Places.names(place) == [n for n in before if second.key not in n]


def test_a_web_server_cannot_be_written(http_server: HttpServer) -> None:
    staging = make(Location.of(f"{http_server.url}/a.b2nd"))
    with pytest.raises(OSError, match=r"web server is read only.*a\.b2nd"):
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
    with pytest.raises(FileNotFoundError, match=r"such a bucket or folder.*a\.b2nd"):
        make(Location.of(f"simplecache::file://{tmp_path}/nothing/a.b2nd")).prepare()
