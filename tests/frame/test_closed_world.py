"""Nothing in a frame makes the reader open another file, reach a network or start a program."""

from __future__ import annotations

import re
import struct
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blosc2
import msgpack
import numpy as np
import pytest

from b2nd_dask import B2ndError, UnsupportedFrameError, from_b2nd, open_b2nd, to_b2nd
from tests.vectors import DATA, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REACHING = re.compile(r"(open|socket\..*|subprocess\..*|os\.(system|exec|posix_spawn|fork).*)")
MEMBER = re.compile(r"chunks\.b2frame|[0-9A-F]{8}\.chunk")

_seen: list[tuple[str, str]] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    # a hook stays for good: it looks only while a test watches, and only at the test's own thread
    if _seen is None or threading.get_ident() != threading.main_thread().ident:
        return
    if REACHING.fullmatch(event):
        _seen.append((event, str(args[0] if args else "")))


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Collect what this thread opens, connects to and starts."""
    global _seen
    seen = _seen = []
    try:
        yield seen
    finally:
        _seen = None


def use(path: Path) -> None:
    """Read everything that is in a frame."""
    try:
        frame = open_b2nd(path)
    except B2ndError:
        return
    for view in (frame.meta, frame.vlmeta):
        for name in view:
            attempt(lambda view=view, name=name: view[name])
    attempt(lambda: frame[tuple(slice(0, 2) for _ in frame.shape)])
    attempt(lambda: from_b2nd(path).blocks[(0,) * frame.ndim].compute(scheduler="sync"))


def attempt(action: Callable[[], object]) -> None:
    """Run an action that may find damage."""
    try:
        action()
    except (B2ndError, IndexError, ValueError):
        return


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Import what the first read imports."""
    use(DATA / "b2nd" / "zfp_prec.b2nd")
    use(DATA / "meta" / "meta_and_vlmeta.b2nd")


def foreign(seen: list[tuple[str, str]], path: Path) -> list[tuple[str, str]]:
    own = {str(path), str(path / "chunks.b2frame")}
    return [
        (event, what)
        for event, what in seen
        if event != "open" or not (what in own or MEMBER.fullmatch(what))
    ]


@pytest.mark.parametrize("row", load(DATA), ids=lambda row: row.file)
def test_vectors_open_themselves_only(row: Any) -> None:
    with watched() as seen:
        use(row.path)
    assert seen
    assert foreign(seen, row.path) == []


def with_second_metalayer(name: str, value: object, path: Path) -> Path:
    blosc2.asarray(np.arange(6), urlpath=str(path), meta={name: value})
    return path


@pytest.mark.parametrize("name", ["b2o", "LazyArray", "proxy-source"])
def test_shells_of_other_files_are_refused(name: str, fresh_path: Callable[[], Path]) -> None:
    secret = fresh_path()
    secret.write_bytes(b"secret")
    value = {"kind": "c2array", "urlpath": str(secret), "urlbase": "http://127.0.0.1:9/"}
    path = with_second_metalayer(name, value, fresh_path())
    with watched() as seen, pytest.raises(UnsupportedFrameError, match=name):
        open_b2nd(path)
    assert foreign(seen, path) == []


@pytest.mark.parametrize("code", [42, 43])
def test_references_in_metadata_are_not_followed(code: int, fresh_path: Callable[[], Path]) -> None:
    path, secret = fresh_path(), fresh_path()
    array = blosc2.asarray(np.arange(6), urlpath=str(path))
    secret.write_bytes(b"secret")
    reference = msgpack.packb({"kind": "urlpath", "version": 1, "urlpath": str(secret)})
    array.schunk.vlmeta.set_vlmeta("r", msgpack.packb(msgpack.ExtType(code, reference)))
    frame = open_b2nd(path)
    with watched() as seen, pytest.raises(UnsupportedFrameError, match="not followed"):
        frame.vlmeta["r"]
    assert seen == []


def chunk_start(path: Path) -> int:
    """Position of the only chunk of a frame."""
    (header_len,) = struct.unpack_from(">i", path.read_bytes(), 11)
    return int(header_len)


@pytest.mark.parametrize("codec", [36, 37, 38, 100])
def test_codecs_of_other_packages_are_not_looked_for(
    codec: int, fresh_path: Callable[[], Path]
) -> None:
    # C-Blosc2 would run "python -c 'import blosc2_grok; ...'"
    path = fresh_path()
    blosc2.asarray(np.arange(4000), urlpath=str(path), chunks=(4000,), blocks=(1000,))
    frame = bytearray(path.read_bytes())
    start = chunk_start(path)
    frame[start + 2] = frame[start + 2] & 0x1F | 6 << 5
    frame[start + 22] = codec
    path.write_bytes(frame)
    with pytest.raises(UnsupportedFrameError, match=f"codec {codec} is not available"):
        open_b2nd(path)[0]


def test_a_codec_named_in_the_header_is_not_looked_for(fresh_path: Callable[[], Path]) -> None:
    path = fresh_path()
    blosc2.asarray(np.arange(4000), urlpath=str(path), chunks=(4000,), blocks=(1000,))
    frame = bytearray(path.read_bytes())
    frame[27], frame[77] = frame[27] & 0xF0 | 6, 37
    path.write_bytes(frame)
    assert open_b2nd(path)[5] == 5
    with pytest.raises(UnsupportedFrameError, match="codec 37"):
        to_b2nd(np.arange(10), path, mode="r+", region=(slice(0, 10),))


def test_a_chunk_that_is_a_link_is_not_followed(fresh_path: Callable[[], Path]) -> None:
    path, secret = fresh_path(), fresh_path()
    blosc2.asarray(np.arange(4000), urlpath=str(path), contiguous=False)
    member = path / "00000000.chunk"
    member.rename(secret)
    member.symlink_to(secret)
    with pytest.raises(B2ndError, match="not a regular file"):
        open_b2nd(path)[0]
