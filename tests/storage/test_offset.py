"""Frames at an offset inside another object."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.storage import Location, OffsetReader, Span
from b2nd_dask.storage.read.container import BytesReader
from b2nd_dask.storage.read.local_reader import LocalReader

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import HttpServer


def test_an_offset_into_bytes() -> None:
    reader = Location.of(b"0123456789", offset=4).open()
    assert reader.read([Span(0, 2), Span(4, 99), Span(99, 100)]) == [b"45", b"89", b""]
    assert reader.identity().size == 6


def test_an_offset_into_a_remote_object(http_server: HttpServer) -> None:
    url = http_server.put("container.bin", b"0123456789")
    reader = Location.of(url, offset=4).open()
    assert reader.read([Span(0, 2), Span(4, 99)]) == [b"45", b"89"]
    assert not reader.identity_is_cheap


def test_nothing_before_the_window_can_be_read() -> None:
    reader = Location.of(b"0123456789", offset=4).open()
    with pytest.raises(ValueError, match="start"):
        reader.read([Span(-2, 2)])


def test_an_offset_at_the_end_leaves_nothing() -> None:
    reader = Location.of(b"0123", offset=4).open()
    assert reader.identity().size == 0
    assert reader.read([Span(0, 4)]) == [b""]


def test_an_offset_past_the_end_is_an_error() -> None:
    reader = Location.of(b"0123", offset=5).open()
    with pytest.raises(FrameFormatError, match=r"offset=5 .* 4 bytes"):
        reader.identity()


def test_a_directory_has_no_offset(tmp_path: Path, http_server: HttpServer) -> None:
    (tmp_path / "chunks.b2frame").write_bytes(b"main")
    http_server.put("sparse/chunks.b2frame", b"main")
    for location in (tmp_path, f"{http_server.url}/sparse"):
        reader = Location.of(location, offset=2).open()
        with pytest.raises(FrameFormatError, match="no byte offset"):
            reader.identity()
        with pytest.raises(FrameFormatError, match="no byte offset"):
            reader.read([Span(0, 1)])


@pytest.mark.parametrize("in_memory", [True, False])
def test_nothing_behind_a_frame_is_read(tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before" + b"frame" + b"after")
    inner = BytesReader(path.read_bytes()) if in_memory else LocalReader(str(path))
    with closing(OffsetReader(inner, 6, 5, "x")) as reader:
        buffers = [memoryview(bytearray(9)) for _ in range(2)]
        found = list(reader.read_each([("", Span(2, 11)), ("", Span(5, 14))], buffers))
    assert [(bytes(data), size) for data, size in found] == [(b"ame", 5), (b"", 5)]
