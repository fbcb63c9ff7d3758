"""Reads of stores that are requested before the tasks need them."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import dask.array as da
import fsspec.config
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import StaleFrameError, from_b2nd
from b2nd_dask.storage.read.connection import READ_AHEAD
from tests.strategies import indices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tests.servers import HttpServer, S3Server

SHAPE, CHUNKS = (60, 64), (10, 16)
#: All chunks together are larger than one request.
DEPTH = 200
#: So many concurrent requests prove a prefetch, since the tasks run one by one.
SEVERAL = 2


@pytest.fixture(autouse=True)
def _one_task_at_once() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def elements() -> NDArray[Any]:
    return np.random.default_rng(3).random((*SHAPE, DEPTH))


@pytest.fixture
def url(http_server: HttpServer, elements: NDArray[Any]) -> str:
    return _stored(http_server, elements)


def _stored(
    server: HttpServer, elements: NDArray[Any], name: str = "x.b2nd", **options: Any
) -> str:
    # more bytes than the first response has
    array = da.from_array(elements, chunks=(*CHUNKS, DEPTH)[: elements.ndim])
    array.to_b2nd(server.folder / name, mode="w", **options)
    return f"{server.url}/{name}"


def _hold_back(server: HttpServer) -> None:
    """Let the server respond only when it has several requests."""
    server.reset()
    server.traffic.wanted = SEVERAL


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.map_blocks(np.negative),
        lambda x: x.sum(),
        lambda x: (x + 1).max(axis=0),
        lambda x: x[5:, ::2].rechunk((5, 32, DEPTH)),
        lambda x: da.concatenate([x[:30], x[30:]], axis=1).map_blocks(np.sqrt),
    ],
    ids=["blocks", "sum", "max", "rechunk", "twice"],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_requests_are_under_way_together(
    http_server: HttpServer,
    elements: NDArray[Any],
    compute: Callable[[Any], Any],
    sparse: bool,
) -> None:
    x = from_b2nd(_stored(http_server, elements, "y.b2nd", contiguous=not sparse))
    expected = compute(da.from_array(elements, chunks=x.chunks)).compute()
    _hold_back(http_server)
    np.testing.assert_allclose(compute(x).compute(), expected)


def test_arrays_in_a_store_of_python_blosc2(
    http_server: HttpServer, elements: NDArray[Any]
) -> None:
    with blosc2.TreeStore(str(http_server.folder / "tree.b2z"), mode="w") as tree:
        tree["/a"] = np.arange(10)
        tree["/b"] = blosc2.asarray(elements, chunks=(*CHUNKS, DEPTH))
    x = from_b2nd(f"{http_server.url}/tree.b2z", component="/b")
    _hold_back(http_server)
    np.testing.assert_array_equal(x.map_blocks(np.negative).compute(), -elements)
    _hold_back(http_server)
    np.testing.assert_allclose(x.sum(axis=0).compute(), elements.sum(axis=0))


def test_a_frame_behind_other_bytes(http_server: HttpServer, elements: NDArray[Any]) -> None:
    _stored(http_server, elements, "plain.b2nd")
    url = http_server.put(
        "inside.bin", bytes(1000) + (http_server.folder / "plain.b2nd").read_bytes()
    )
    x = from_b2nd(url, offset=1000)
    _hold_back(http_server)
    np.testing.assert_array_equal(x.map_blocks(np.negative).compute(), -elements)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x * 2 + 1,
        lambda x, y: da.where((x > 0) & (y > 5), x, 0),
        lambda x, y: da.where(x > 0, x, x + 1),
        # chunks may be pruned, but none is
        lambda x, y: da.where(x > 0.5, x, y),
    ],
    ids=["arithmetic", "other inputs", "both branches", "one branch"],
)
def test_statistics_that_prune_nothing(
    http_server: HttpServer, elements: NDArray[Any], compute: Callable[..., Any]
) -> None:
    x = from_b2nd(_stored(http_server, elements, "stats.b2nd", stats=True))
    y = da.from_array(elements * 3, chunks=x.chunks)
    _hold_back(http_server)
    found = compute(x, y).map_blocks(np.negative).compute()
    np.testing.assert_array_equal(found, -np.asarray(compute(elements, elements * 3)))


def test_chunks_that_are_not_pruned_are_requested(
    http_server: HttpServer, elements: NDArray[Any]
) -> None:
    # the first and the last chunks of the file pass: too far apart for one request
    ends = elements * 0.9
    ends[[0, -1]] = elements[[0, -1]]
    x = from_b2nd(_stored(http_server, ends, "ends.b2nd", stats=True))
    _hold_back(http_server)
    found = da.where(x > 0.95, x, 0).map_blocks(np.negative).compute()
    np.testing.assert_array_equal(found, -np.where(ends > 0.95, ends, 0))
    assert 2 <= len(http_server.requests) <= x.npartitions // 2
    # a few large requests would have all chunks
    assert http_server.sent <= (http_server.folder / "ends.b2nd").stat().st_size // 2


def test_without_read_ahead_each_task_waits(
    http_server: HttpServer, elements: NDArray[Any]
) -> None:
    with _read_ahead(0):
        # the chunks of a task fit one request
        x = from_b2nd(_stored(http_server, elements[:, :, :64], "little.b2nd"))
        http_server.reset()
        x.map_blocks(np.negative).compute()
    assert http_server.traffic.peak == 1


def test_nothing_is_fetched_twice(url: str, http_server: HttpServer) -> None:
    x = from_b2nd(url)
    http_server.reset()
    x.map_blocks(np.negative).compute()
    size = (http_server.folder / "x.b2nd").stat().st_size
    assert http_server.sent <= size


def test_what_waits_is_bounded(http_server: HttpServer) -> None:
    """A slow task delays the requests of later tasks."""
    elements = np.random.default_rng(4).random((*SHAPE, 400))
    da.from_array(elements, chunks=(*CHUNKS, 400)).to_b2nd(http_server.folder / "waiting.b2nd")
    x = from_b2nd(f"{http_server.url}/waiting.b2nd")
    chunk_nbytes = math.prod(x.chunksize) * 8
    waiting: list[int] = []

    def note(block: NDArray[Any]) -> NDArray[Any]:
        if block.size:
            traffic = http_server.traffic
            with traffic.changed:
                assert traffic.changed.wait_for(lambda: traffic.present == 0, timeout=60)
            waiting.append(http_server.sent - (len(waiting) + 1) * chunk_nbytes)
        return block

    http_server.reset()
    with _read_ahead(2 * chunk_nbytes):
        x.map_blocks(note, meta=np.empty((0, 0, 0))).compute()
    # requests that were merged may exceed the limit
    assert max(waiting) <= 2 * chunk_nbytes + (4 << 20) < elements.nbytes / 2


@given(index=indices((*SHAPE, 8)), divided=st.booleans())
def test_any_selection(
    index: Any,
    divided: bool,
    _running_http_server: HttpServer,  # noqa: PT019 - a session's, for all examples
) -> None:
    elements = np.random.default_rng(5).random((*SHAPE, 8))
    path = _running_http_server.folder / "any.b2nd"
    if not path.exists():
        da.from_array(elements, chunks=(*CHUNKS, 8)).to_b2nd(path)
    x = from_b2nd(f"{_running_http_server.url}/any.b2nd")[index]
    expected = elements[index]
    if divided and x.ndim:
        x = x.rechunk(tuple(max(1, n // 3) for n in x.shape))
    np.testing.assert_array_equal(x.map_blocks(np.negative).compute(), -expected)


def test_several_frames_of_one_graph(http_server: HttpServer, elements: NDArray[Any]) -> None:
    urls = [_stored(http_server, elements + n, f"{n}.b2nd") for n in range(3)]
    x = sum(from_b2nd(url) for url in urls)
    _hold_back(http_server)
    np.testing.assert_allclose(x.compute(), 3 * elements + 3)


def test_joined_frames(http_server: HttpServer, elements: NDArray[Any]) -> None:
    urls = [_stored(http_server, elements + n, f"j{n}.b2nd") for n in range(3)]
    x = from_b2nd(urls)
    [each[:1].compute() for each in map(from_b2nd, urls)]
    _hold_back(http_server)
    expected = np.stack([elements + n for n in range(3)])
    np.testing.assert_array_equal((x * 1).compute(), expected.reshape(x.shape))


def test_s3(s3_server: S3Server, elements: NDArray[Any], tmp_path: Any) -> None:
    da.from_array(elements, chunks=(*CHUNKS, DEPTH)).to_b2nd(tmp_path / "x.b2nd")
    url = s3_server.put("prefetched.b2nd", (tmp_path / "x.b2nd").read_bytes())
    x = from_b2nd(url, storage_options=s3_server.storage_options)
    np.testing.assert_array_equal(x.map_blocks(np.negative).compute(), -elements)


@pytest.mark.parametrize(
    "compute", [lambda x: x * -1, lambda x: x.map_blocks(np.negative)], ids=["absorbed", "fused"]
)
def test_an_array_of_dask_array(
    url: str,
    http_server: HttpServer,
    elements: NDArray[Any],
    compute: Callable[[Any], Any],
) -> None:
    pytest.importorskip("dask_array")
    x = from_b2nd(url, array_type="dask-array")
    _hold_back(http_server)
    np.testing.assert_array_equal(compute(x).compute(), -elements)


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
def test_a_frame_of_this_machine_beside_one_of_a_store(
    url: str, http_server: HttpServer, elements: NDArray[Any], array_type: str
) -> None:
    pytest.importorskip("dask_array")
    local, stored = (
        from_b2nd(each, array_type=array_type) for each in (http_server.folder / "x.b2nd", url)
    )
    _hold_back(http_server)
    np.testing.assert_array_equal((local + stored).compute(), 2 * elements)


def test_a_frame_that_is_replaced_meanwhile(http_server: HttpServer) -> None:
    # more bytes than are requested before the first task runs
    elements = np.random.default_rng(6).random((*SHAPE, 400))
    x = from_b2nd(_stored(http_server, elements, "replaced.b2nd"))
    other = (http_server.folder / "replaced.b2nd").read_bytes()

    def replace(block: NDArray[Any]) -> NDArray[Any]:
        if block.size:
            http_server.put("replaced.b2nd", other)
        return block

    with _read_ahead(1 << 20), pytest.raises(StaleFrameError, match="changed after it was opened"):
        x.map_blocks(replace, meta=np.empty((0, 0, 0))).compute()


def test_responses_that_fail_are_requested_again(
    url: str, http_server: HttpServer, elements: NDArray[Any]
) -> None:
    x = from_b2nd(url)
    http_server.reset()
    http_server.cut = 10

    calls: list[str] = []

    def behave(path: str) -> None:
        calls.append(path)
        # after the requests of the prefetch, and the first repeated one
        if len(calls) > 3:
            http_server.cut = 0

    http_server.before = behave
    np.testing.assert_array_equal(x.map_blocks(np.negative).compute(), -elements)


def test_errors_name_the_frame_and_end_the_prefetch(url: str, http_server: HttpServer) -> None:
    x = from_b2nd(url)
    http_server.reset()
    http_server.status = 403
    with pytest.raises(OSError, match=r"x\.b2nd"):
        x.map_blocks(np.negative).compute()
    http_server.reset()
    assert x.sum().compute() > 0


def test_a_setting_that_is_no_number(url: str) -> None:
    with _read_ahead("much"), pytest.raises(ValueError, match="read_ahead='much'"):
        from_b2nd(url).map_blocks(np.negative).compute()


@contextmanager
def _read_ahead(value: Any) -> Iterator[None]:
    """Set `read_ahead` in fsspec's configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "b2nd", {READ_AHEAD: value})
        yield
