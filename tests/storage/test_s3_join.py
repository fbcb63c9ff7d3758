"""Frames in S3 are joined by the server, published by one request, and only if they may be."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from b2nd_dask.storage import Location, Run
from b2nd_dask.storage.write import s3_join
from b2nd_dask.storage.write.object_store import PIECE_NBYTES
from b2nd_dask.storage.write.s3_join import (
    SMALL_FRAME_NBYTES,
    Limits,
    ServerJoin,
    nbytes_of,
    plan_parts,
)
from tests.storage.staged_frames import HEAD, TAIL, incompressible, make, publish, put, staged_at

if TYPE_CHECKING:
    from tests.s3_recording import RecordingS3

pytest_plugins = ["tests.s3_recording"]

MIB = 1 << 20


def test_a_small_frame_is_one_request(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    expected = publish(make(s3), [[b"ab", b"cde"], [b"f"], [b"ghi"]])
    assert recording_s3.data(name) == expected
    assert recording_s3.count("CreateMultipartUpload") == 0
    assert recording_s3.keys(name) == [name]


def test_large_objects_are_joined_by_the_server(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    objects = [
        [incompressible(3 * MIB, seed) + b"x", incompressible(4 * MIB, 100 + seed)]
        for seed in range(3)
    ]
    total = sum(len(chunk) for chunks in objects for chunk in chunks)
    expected = publish(make(s3), objects)
    assert recording_s3.data(name) == expected
    # the first object cannot be divided into 5 MiB for the header and 5 MiB for a part
    assert recording_s3.count("UploadPartCopy") == 2
    fetched = recording_s3.sent("GetObject")
    assert fetched <= 8 * MIB
    assert recording_s3.received("UploadPart") <= fetched + len(HEAD + TAIL) + 1000
    assert total > 20 * MIB
    assert recording_s3.keys(name) == [name]
    assert recording_s3.uploads() == []


def test_only_the_rest_of_the_first_part_is_fetched(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    expected = publish(make(s3), [[incompressible(18 * MIB)]])
    assert recording_s3.data(name) == expected
    assert recording_s3.count("UploadPartCopy") == 1
    assert recording_s3.sent("GetObject") == Limits().min_part - len(HEAD)


def test_small_objects_are_collected_in_pieces(
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
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    staging = make(s3)
    staging.prepare()
    area = staging.area()
    chunks = [incompressible(5 * MIB + seed, seed) for seed in range(6)]
    paths = [put(area, f"{i}", chunk) for i, chunk in enumerate(chunks)]
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
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    staging = make(s3)
    staging.prepare()
    area = staging.area()
    chunk = incompressible(6 * MIB)
    runs = [Run(put(area, f"{i}", chunk), 0, len(chunk)) for i in range(4)]
    join = ServerJoin(area, Limits(max_part=6 * MIB, max_parts=3))
    with pytest.raises(OSError, match=rf"larger dask blocks.*{name}"):
        join.publish(HEAD, runs, TAIL, replace=False)
    staging.discard()
    assert recording_s3.keys(name) == []


@pytest.mark.parametrize("limits", [Limits(), Limits(max_parts=4, piece=6 * MIB)])
@pytest.mark.parametrize("refusal", [("501 Not Implemented", "NotImplemented"), ("200 OK", "")])
def test_a_server_that_copies_no_parts(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
    limits: Limits,
    refusal: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_join, "_copies", {})
    recording_s3.refused, recording_s3.refusal = "UploadPartCopy", refusal
    staging = make(s3)
    staging.prepare()
    area = staging.area()
    chunks = [incompressible(n * MIB + n, n) for n in (35, 1, 6)]
    runs = [Run(put(area, f"{n}", chunk), 0, len(chunk)) for n, chunk in enumerate(chunks)]
    ServerJoin(area, limits).publish(HEAD, runs, TAIL, replace=False)
    assert recording_s3.uploads() == []
    staging.discard()
    assert recording_s3.data(name) == HEAD + b"".join(chunks) + TAIL
    assert recording_s3.keys(name) == [name]
    actions = [r.action for r in recording_s3.requests]
    assert actions.count("CreateMultipartUpload") == 2
    aborted = actions.index("AbortMultipartUpload")
    # once the server has refused, no more are begun
    assert actions[:aborted].count("UploadPart") <= 2
    assert actions[aborted:].count("UploadPart") == 3
    parts = [r.received for r in recording_s3.requests if r.action == "UploadPart"]
    assert recording_s3.count("CompleteMultipartUpload") == 1
    assert max(parts) < 2 * PIECE_NBYTES


def test_checksums_of_parts_are_given_back(
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
    runs = [Run(put(area, "a", incompressible(nbytes)), 0, nbytes)]
    recording_s3.server.put(name, b"theirs")
    with pytest.raises(FileExistsError, match=name):
        ServerJoin(area).publish(HEAD, runs, TAIL, replace=False)
    staging.discard()
    assert recording_s3.data(name) == b"theirs"
    assert recording_s3.keys(name) == [name]
    assert recording_s3.uploads() == []


@pytest.mark.parametrize("nbytes", [10, 18 * MIB])
def test_a_write_that_was_given_up_makes_no_object(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
    nbytes: int,
) -> None:
    """Given up by another process, which has not removed what was staged so far."""
    staging = make(s3)
    staging.prepare()
    placement = staging.join(*staged_at(staging.append([incompressible(nbytes)])))
    staging.area().close()
    with pytest.raises(FileNotFoundError, match="given up"):
        staging.publish(placement, HEAD, TAIL)
    assert recording_s3.uploads() == []
    staging.discard()
    assert recording_s3.keys(name) == []


@pytest.mark.parametrize("nbytes", [10, SMALL_FRAME_NBYTES])
def test_a_server_without_conditional_writes(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
    nbytes: int,
) -> None:
    recording_s3.conditional = False
    expected = publish(make(s3), [[incompressible(nbytes)]])
    assert recording_s3.data(name) == expected


def test_the_request_that_makes_the_object_is_conditional(
    recording_s3: RecordingS3,
    s3: Location,
) -> None:
    publish(make(s3), [[incompressible(18 * MIB)]])
    publish(make(s3, replace=True), [[incompressible(18 * MIB)]])
    completed = [r for r in recording_s3.requests if r.action == "CompleteMultipartUpload"]
    assert [request.condition for request in completed] == ["*", None]


@pytest.mark.parametrize("action", ["UploadPartCopy", "CompleteMultipartUpload"])
def test_a_join_that_fails_leaves_the_old_object(
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


def test_a_bucket_that_does_not_exist(recording_s3: RecordingS3) -> None:
    location = Location.of("s3://nowhere/a.b2nd", storage_options=recording_s3.storage_options)
    with pytest.raises(FileNotFoundError, match=r"No such bucket.*s3://nowhere/a\.b2nd"):
        make(location).prepare()
    assert "nowhere" not in str(recording_s3.server.client.list_buckets()["Buckets"])


def test_a_version_is_no_target(
    recording_s3: RecordingS3,
    s3: Location,
    name: str,
) -> None:
    options = {**recording_s3.storage_options, "version_aware": True}
    url = f"{recording_s3.url}/{name}?versionId=abc"
    with pytest.raises(ValueError, match="version"):
        make(Location.of(url, storage_options=options)).prepare()


SOURCES = st.lists(
    st.one_of(
        st.integers(0, 30).map(bytes),
        st.integers(1, 30).map(lambda n: Run("a", 7, 7 + n)),
    ),
    min_size=1,
    max_size=30,
)


@given(SOURCES)
@example([b"", Run("a", 7, 12)])
def test_parts_are_the_sources_in_order_and_none_too_small(sources: list[bytes | Run]) -> None:
    limits = Limits(min_part=5)

    def spread(source: bytes | Run) -> list[object]:
        if isinstance(source, Run):
            return [(source.part, i) for i in range(source.start, source.stop)]
        return list(source)

    parts = plan_parts(sources, limits)
    sources_of = [[part] if isinstance(part, Run) else part for part in parts]
    flat = [item for part in sources_of for source in part for item in spread(source)]
    assert flat == [item for source in sources for item in spread(source)]
    assert all(sum(map(nbytes_of, part)) >= 5 for part in sources_of[:-1])
