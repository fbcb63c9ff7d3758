"""Local files and directories: odd file types, links, replaced files, descriptors."""

from __future__ import annotations

import gc
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from b2nd_dask.errors import FrameFormatError, StaleFrameError
from b2nd_dask.storage import Location, Span
from b2nd_dask.storage.read.local_reader import LocalReader


def open_descriptors(folder: Path) -> int:
    """Descriptors of what is in a folder, or is a device: other tests may leave connections."""
    gc.collect()
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        # the directory itself was open while it was listed, and other threads close theirs
        with suppress(FileNotFoundError):
            count += str(link.readlink()).startswith((str(folder), "/dev/null"))
    return count


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "frame.b2nd"
    folder.mkdir()
    (folder / "chunks.b2frame").write_bytes(b"main")
    return folder


def test_a_replaced_file_shows_in_the_identity_and_never_in_the_data(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    path.write_bytes(b"old" * 100)
    reader = LocalReader(str(path))
    before = reader.identity()
    (tmp_path / "new").write_bytes(b"new" * 100)
    (tmp_path / "new").rename(path)
    assert reader.identity() != before
    assert reader.read([Span(0, 6)]) == [b"oldold"]


def test_a_deleted_file_has_no_identity(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    path.write_bytes(b"data")
    reader = LocalReader(str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        reader.identity()


def test_a_directory_that_became_a_file_is_another_frame(directory: Path) -> None:
    reader = LocalReader(str(directory))
    directory.rename(directory.with_name("old"))
    directory.write_bytes(b"file")
    with pytest.raises(StaleFrameError, match="is a file now") as caught:
        reader.identity()
    assert caught.value.path == str(directory)


def test_a_file_cut_short_reads_short(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    path.write_bytes(bytes(10_000))
    reader = LocalReader(str(path))
    os.truncate(path, 100)
    assert reader.read([Span(0, 10_000), Span(50, 200), Span(500, 600)]) == [
        bytes(100),
        bytes(50),
        b"",
    ]


def test_the_path_of_a_frame_may_be_a_symlink(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-directory").symlink_to(directory)
    assert LocalReader(str(tmp_path / "to-file")).read([Span(0, 9)]) == [b"data"]
    assert LocalReader(str(tmp_path / "to-directory")).read([Span(0, 9)]) == [b"main"]


@pytest.mark.parametrize("name", ["00000000.chunk", "chunks.b2frame"])
@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "fifo", "socket"])
def test_a_member_must_be_a_regular_file(
    tmp_path: Path, directory: Path, name: str, kind: str
) -> None:
    member = directory / name
    member.unlink(missing_ok=True)
    make_odd_file(member, kind, tmp_path)
    with pytest.raises(FrameFormatError, match="regular file") as caught:
        LocalReader(str(directory)).read([Span(0, 4)], name)
    assert str(member) in str(caught.value)


def make_odd_file(path: Path, kind: str, tmp_path: Path) -> None:
    if kind == "symlink":
        (tmp_path / "secret").write_bytes(b"a secret of somebody else")
        path.symlink_to(tmp_path / "secret")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        # The path of a socket may have about 100 characters: bound from inside its folder.
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(path.name)
        finally:
            os.chdir(before)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_a_frame_is_no_fifo_or_socket(tmp_path: Path, kind: str) -> None:
    make_odd_file(tmp_path / "odd", kind, tmp_path)
    with pytest.raises(FrameFormatError, match="regular file"):
        LocalReader(str(tmp_path / "odd"))


def test_a_frame_is_no_device() -> None:
    with pytest.raises(FrameFormatError, match="regular file"):
        LocalReader("/dev/null")


@pytest.mark.parametrize("name", ["../outside", "..", ".", "sub/x", "/etc/hostname", "a\0b"])
def test_a_member_name_does_not_lead_out(tmp_path: Path, directory: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"a secret of somebody else")
    (directory / "sub").mkdir()
    (directory / "sub" / "x").write_bytes(b"x")
    reader = LocalReader(str(directory))
    with pytest.raises(FrameFormatError, match="not the name of a member"):
        reader.read([Span(0, 4)], name)


def test_a_swapped_directory_is_not_followed(tmp_path: Path, directory: Path) -> None:
    (directory / "00000000.chunk").write_bytes(b"old")
    reader = LocalReader(str(directory))
    before = reader.identity()
    directory.rename(tmp_path / "moved")
    directory.mkdir()
    (directory / "chunks.b2frame").write_bytes(b"main")
    (directory / "00000000.chunk").write_bytes(b"new")
    assert reader.read([Span(0, 3)], "00000000.chunk") == [b"old"]
    assert reader.identity() != before


def test_an_ordinary_directory_is_no_frame(tmp_path: Path) -> None:
    with pytest.raises(FrameFormatError, match=r"chunks\.b2frame.*not a sparse frame"):
        LocalReader(str(tmp_path))


def test_descriptors_are_given_back(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    (directory / "00000000.chunk").write_bytes(b"chunk")
    before = open_descriptors(tmp_path)
    readers = [LocalReader(str(tmp_path / "a")), LocalReader(str(directory))]
    for _ in range(50):
        readers[1].read([Span(0, 5)], "00000000.chunk")
        with pytest.raises(FileNotFoundError):
            readers[1].read([Span(0, 5)], "00000001.chunk")
        with pytest.raises(FrameFormatError):
            LocalReader(str(tmp_path))
        with pytest.raises(FrameFormatError):
            LocalReader("/dev/null")
    assert open_descriptors(tmp_path) == before + 2
    readers[0].close()
    assert open_descriptors(tmp_path) == before + 1
    readers.clear()
    assert open_descriptors(tmp_path) == before


def test_closing_under_a_read_never_gives_bytes_of_another_file(tmp_path: Path) -> None:
    good, other = tmp_path / "good", tmp_path / "other"
    good.write_bytes(b"g" * 300_000)
    other.write_bytes(b"x" * 300_000)
    seen: set[bytes] = set()
    for _ in range(30):
        reader = LocalReader(str(good))
        started = threading.Barrier(2)

        def read_on(reader: LocalReader = reader, started: threading.Barrier = started) -> None:
            started.wait()
            try:
                while True:
                    for part in reader.read([Span(i, i + 2000) for i in range(0, 290_000, 9000)]):
                        seen.update((part[:1], part[-1:]))
            except ValueError:  # closed: what later reads must meet
                pass

        thread = threading.Thread(target=read_on)
        thread.start()
        started.wait()
        reader.close()
        del reader
        intruders = [LocalReader(str(other)) for _ in range(5)]
        thread.join(300)
        assert not thread.is_alive()
        del intruders
    assert seen <= {b"g"}


def test_a_relative_path_holds_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.b2nd").write_bytes(b"data")
    monkeypatch.chdir(tmp_path)
    location = Location.of("a.b2nd")
    monkeypatch.chdir("/")
    assert location.open().read([Span(0, 4)]) == [b"data"]
