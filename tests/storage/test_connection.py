"""Connections to file systems: shared or private, one call at a time where they must be."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec import AbstractFileSystem

from b2nd_dask.storage import Location, Span, below
from b2nd_dask.storage.read.connection import Connection

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import HttpServer, S3Server


def test_a_file_system_is_shared_unless_it_is_private(s3_server: S3Server) -> None:
    location = Location.of("s3://frames/a.b2nd", storage_options=s3_server.storage_options)
    assert Connection.of(location).fs is Connection.of(location).fs
    options = {**s3_server.storage_options, "skip_instance_cache": True}
    private = Location.of("s3://frames/a.b2nd", storage_options=options)
    assert Connection.of(private).fs is not Connection.of(private).fs


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("memory://a/b.b2nd", "/a/b.b2nd/chunks.b2frame"),
        ("memory://a/b.b2nd/", "/a/b.b2nd/chunks.b2frame"),
        ("https://host/b.b2nd", "https://host/b.b2nd/chunks.b2frame"),
        ("https://host/b.b2nd/?sig=1/2", "https://host/b.b2nd/chunks.b2frame?sig=1/2"),
        ("simplecache::https://host/b.b2nd/?sig=1", "https://host/b.b2nd/chunks.b2frame?sig=1"),
        ("memory://a/b?c=1/", "/a/b?c=1/chunks.b2frame"),
    ],
)
def test_the_path_of_a_member(url: str, path: str) -> None:
    assert below(Connection.of(Location.of(url)).path, "chunks.b2frame") == path


def test_a_connection_knows_its_protocols(s3_server: S3Server, http_server: HttpServer) -> None:
    # both names of each
    location = Location.of("s3://frames/a.b2nd", storage_options=s3_server.storage_options)
    connection = Connection.of(location)
    assert connection.has_protocol("s3")
    assert connection.has_protocol("s3a")
    assert Connection.of(Location.of(f"{http_server.url}/a")).has_protocol("https")
    assert not Connection.of(Location.of("memory://a")).has_protocol("s3")


def test_bytes_have_no_file_system() -> None:
    with pytest.raises(TypeError, match=r"<bytes, 3 B> has no URL"):
        Connection.of(Location.of(b"abc"))


class Counting(AbstractFileSystem):
    """Counts the calls that are in it at the same time."""

    protocol = "counting"
    cachable = False
    lock = threading.Lock()
    present = 0
    peak = 0

    def info(self, path: str, **_: object) -> dict[str, object]:
        kind = type(self)
        with kind.lock:
            kind.present += 1
            kind.peak = max(kind.peak, kind.present)
        # long enough for the others to come, if they could
        threading.Event().wait(0.01)
        with kind.lock:
            kind.present -= 1
        return {"name": path, "size": 0, "type": "file"}


def test_file_systems_without_an_event_loop_get_one_call_at_a_time() -> None:
    fsspec.register_implementation("counting", Counting, clobber=True)
    with ThreadPoolExecutor(8) as threads:
        readers = [Location.of(f"counting://{i}").open() for i in range(16)]
        sizes = list(threads.map(lambda reader: reader.identity().size, readers))
    assert sizes == [0] * 16
    assert Counting.peak == 1
    assert Counting.present == 0


def _identity_in_child(reader: Any, results: Any) -> None:
    results.put(reader.identity())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_connects_anew(http_server: HttpServer) -> None:
    url = http_server.put(f"{uuid.uuid4().hex}.b2nd", b"x" * 100)
    reader = Location.of(url).open()
    identity = reader.identity()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_identity_in_child, args=(reader, results))
    child.start()
    assert results.get(timeout=300) == identity
    child.join(300)
    assert child.exitcode == 0
    assert reader.identity() == identity


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_keeps_no_file_system_in_the_parent() -> None:
    class Unshared(AbstractFileSystem):
        protocol = ("unshared",)
        cachable = False

    fsspec.register_implementation("unshared", Unshared, clobber=True)
    connection = Connection.of(Location.of("unshared://a"))
    alive = weakref.ref(connection.fs)
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(300)
    del connection
    gc.collect()
    assert alive() is None


def test_names_are_looked_up_while_threads_wait_for_a_file_system(
    http_server: HttpServer, tmp_path: Path
) -> None:
    # more than the event loop has threads of its own, in which names are looked up
    threads = 2 * (min(32, (os.cpu_count() or 1) + 4))
    url = http_server.put("looked-up.bin", bytes(200_000)).replace("127.0.0.1", "localhost")
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    readers = [
        Location.of(f"simplecache::{url}?{number}", storage_options=options).open()
        for number in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda reader: reader.read([Span(150_000, 150_010)]), readers))
    assert found == [[bytes(10)]] * threads
