"""Staging areas that are listed while others come and go."""

import os
import threading

import fsspec
import pytest

from b2nd_dask.storage import Location, StagingInfo, list_staging, remove_staging, staging_for
from b2nd_dask.storage.write.local_names import remove_path


def test_while_a_write_finishes(tmp_path):
    target = tmp_path / "a.b2nd"
    over = threading.Event()

    def churn():
        while not over.is_set():
            staging = staging_for(Location.of(target), sparse=False, replace=False, header_len=100)
            staging.prepare()
            staging.append([b"x" * 50])
            staging.discard()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(2000):
            assert all(isinstance(info, StagingInfo) for info in list_staging(target))
    finally:
        over.set()
        thread.join()


def test_a_link_that_leads_nowhere(tmp_path):
    target = tmp_path / "a.b2nd"
    area = tmp_path / f".a.b2nd.{'0' * 16}.staging"
    area.symlink_to(tmp_path / "nothing")
    (info,) = list_staging(target)
    assert info.nbytes == 0
    assert remove_staging(target) == [info]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["adds", "removes"])
def test_a_directory_in_which_others_are_at_work_is_removed(tmp_path, monkeypatch, other):
    """A change links chunk files into a frame that was replaced until it sees so."""
    folder = tmp_path / "removed"
    frame = folder / "frame"
    frame.mkdir(parents=True)
    for number in range(10):
        (frame / f"{number:08X}.chunk").touch()
    names = iter(range(100, 105))

    def meddle(original):
        def call(*arguments, **keywords):
            number = next(names, None)
            if other == "adds" and number is not None and frame.exists():
                (frame / f"{number:08X}.chunk").touch()
            if other == "removes":
                (frame / "00000005.chunk").unlink(missing_ok=True)
            return original(*arguments, **keywords)

        return call

    with monkeypatch.context() as patch:
        for name in ("rmdir", "scandir"):
            patch.setattr(os, name, meddle(getattr(os, name)))
        remove_path(folder)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "removed"
    folder.mkdir()
    (folder / "part").touch()

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted", "part")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError, match=str(folder)):
            remove_path(folder)


def test_a_url_that_ends_with_a_slash():
    url = "memory://staged/a.b2nd/"
    staging = staging_for(Location.of(url), sparse=True, header_len=100)
    staging.prepare()
    (info,) = list_staging(url)
    assert fsspec.url_to_fs(info.path)[0].exists(info.path)
    assert info.path == f"memory://staged/a.b2nd.{info.key}.staging"
    assert remove_staging(url) == [info]
    assert not fsspec.url_to_fs(info.path)[0].exists(info.path)


@pytest.mark.parametrize("call", [list_staging, remove_staging])
def test_a_bucket_that_is_missing_is_named(s3_server, call):
    with pytest.raises(FileNotFoundError, match=r"No such bucket.*s3://nowhere/a\.b2nd"):
        call("s3://nowhere/a.b2nd", storage_options=s3_server.storage_options)


@pytest.mark.parametrize("name", ["a.b2nd", "folder/that/is/missing/a.b2nd"])
def test_a_bucket_in_which_nothing_is_staged(s3_server, name):
    url, options = f"{s3_server.url}/{name}", s3_server.storage_options
    assert list_staging(url, storage_options=options) == []
    assert remove_staging(url, storage_options=options) == []
    with pytest.raises(FileNotFoundError, match="no staging area has the key"):
        remove_staging(url, key="0" * 16, storage_options=options)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_old_frames_in_a_folder(tmp_path, is_sparse, is_replaced):
    """Left by a kill while they were replaced, where directories cannot be exchanged."""
    folder = tmp_path / "a.b2nd"
    target = folder / "inner" / folder.name
    target.parent.mkdir(parents=True)
    aside = target.with_name(f".a.b2nd.{'0' * 16}.old")
    written = aside / "chunks.b2frame" if is_sparse else aside
    written.parent.mkdir(exist_ok=True)
    written.write_text("old")
    # the names alone do not tell this frame from the folder
    beside = folder / aside.name
    beside.write_text("beside")
    if is_replaced:
        target.write_text("new")
    infos = list_staging(folder)
    assert {info.path for info in infos} == {str(aside), str(beside)}
    assert remove_staging(folder) == infos
    assert {path.name for path in target.parent.iterdir()} == {target.name}
    found = target / "chunks.b2frame" if is_sparse and not is_replaced else target
    assert found.read_text() == ("new" if is_replaced else "old")
    assert (folder / "a.b2nd").read_text() == "beside"
    assert list(tmp_path.iterdir()) == [folder]
