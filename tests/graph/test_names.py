"""Names of tasks on dask's dashboard: `key_split` of keys, which drops words with digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.utils import assert_eq
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph
from dask.utils import key_split
from distributed import Client, LocalCluster

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.task_names import frame_name, of_frame
from tests.servers import HttpServer


def writing(frame: str) -> set[str]:
    return {f"{step}({frame})" for step in ("open", "write", "merge", "commit")}


class Names(Callback):
    """Collects the names that a dashboard would show of the tasks that run."""

    def __init__(self) -> None:
        self.shown: set[str] = set()

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.shown.add(key_split(key))


def shown_of(call: Callable[[], object]) -> set[str]:
    with Names() as names, dask.config.set(scheduler="sync"):
        call()
    return names.shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.b2nd"
    to_b2nd(np.arange(10000.0).reshape(100, 100), path, chunks=(30, 100))
    return path


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    """Names of files in Latin-1, which Python reads with surrogates."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/b\xe4r.b2nd")
    try:
        Path(path).touch()
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    x = to_b2nd(np.arange(6.0), path, mode="w", chunks=2)
    assert to_b2nd(x * 2, path, mode="a", append_axis=0, resume=True).sum().compute() == 45
    assert from_b2nd(path).sum().compute(scheduler="processes") == 45


def test_reads(path: Path) -> None:
    x = from_b2nd(path)
    assert x.name.startswith("read(a)-")
    finish = "finalize-hlgfinalizecompute"
    # one task reads all; no dashboard shows tasks of threads
    assert shown_of(x.compute) == {finish}
    assert shown_of(x.persist) == {"read(a)"}
    assert shown_of(from_b2nd(open_b2nd(path), chunks="auto").persist) == {"read(a)"}
    # a read that becomes part of another task has its name, as with any array of dask
    shown = shown_of(x.sum().compute)
    assert shown <= {"read_sum(a)", "sum", "sum-partial", "sum-aggregate", finish}
    assert not shown_of((x * 2 + 1)[3:50].compute) & {"read(a)", "from"}
    assert {key_split(key) for key in x.__dask_graph__()} == {"read(a)"}
    assert {key_split(key) for key in x.sum().__dask_graph__()} >= {"read(a)"}
    assert from_b2nd(path, name="mine").name == "mine"


def test_writes(path: Path, tmp_path: Path) -> None:
    x = from_b2nd(path)
    new = tmp_path / "new.b2nd"
    assert shown_of(lambda: to_b2nd(x * 2, new)) == writing("new")
    assert shown_of(lambda: to_b2nd(x * 2, new, mode="w", contiguous=False)) == writing("new")
    made = to_b2nd(x * 2, tmp_path / "later.b2nd", compute=False)
    assert {key_split(key) for key in made.__dask_graph__()} == writing("later")
    assert shown_of(lambda: made.compute()) == writing("later")


def test_constants(tmp_path: Path) -> None:
    ones = da.ones((100, 100), chunks=(30, 100))
    shown = shown_of(lambda: to_b2nd(ones, tmp_path / "ones.b2nd"))
    assert shown <= writing("ones") | {"known(ones)"}


def test_changes(path: Path) -> None:
    x = from_b2nd(path)
    rows = da.ones((7, 100), chunks=3).cumsum(axis=0)
    for how in ({"mode": "r+", "region": slice(25, 32)}, {"mode": "a", "append_axis": 0}):
        shown = shown_of(lambda how=how: to_b2nd(rows, path, **how))
        assert shown >= writing("a")
        x = from_b2nd(path)
        assert "from" not in shown
    assert x.shape == (107, 100)


def test_a_write_that_goes_on(path: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.b2nd"
    failing = from_b2nd(path).map_blocks(_fail_half_way, dtype="f8")
    with pytest.raises(RuntimeError, match="half-way"), dask.config.set(scheduler="sync"):
        to_b2nd(failing, new, resume=True)
    graph = to_b2nd(failing, new, resume=True, compute=False).__dask_graph__()
    assert {key_split(key) for key in graph} == writing("new") | {"known(new)"}


def _fail_half_way(block: np.ndarray) -> np.ndarray:
    # dask computes the first block last, so there are chunks to reuse
    if block[0, 0] == 0:
        raise RuntimeError("half-way")
    return block


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("/d/t2m-2020.b2nd", "t2m_2020"),
        ("/d/0a1b2c3d4e5f60718293a4b5c6d7e8f9.b2nd", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"),
        ("/d/abcdefab.b2nd", "abcdefab"),
        ('/d/(x\', "y").b2nd', "x_y"),
        ("/d/<b>.b2nd[4096:]", "b"),
        ("/d/temp\u00e9rature.b2nd", "temp\u00e9rature"),
        ("/d/" + "x" * 300 + ".b2nd", "x" * 40),
        ("/d/sparse.b2nd/", "sparse"),
        ("/d/---", ""),
        ("zip://in/a.b2nd::s3://bucket/all.zip", "a"),
        ("simplecache::s3://bucket/a.b2nd", "a"),
        ("https://host/[hidden]", ""),
        ("[hidden]", ""),
        ("<bytes, 200 B>", ""),
        ("/d/d0.b2nd and 3 others", "d0_and_3"),
        ("/d/" + "x" * 300 + ".b2nd and 12 others", "x" * 33 + "_and_12"),
        ("zip://in/a.b2nd::s3://bucket/all.zip and 1 others", "a_and_1"),
        ("https://host/[hidden] and 3 others", ""),
        ("<bytes, 200 B> and 3 others", ""),
    ],
)
def test_any_file_name_is_shown_as_one_word(label: str, name: str) -> None:
    assert frame_name(label) == name
    shown = f"read({name})" if name else "read"
    for token in ("0a1b", "abcdefab", "f" * 32):
        assert key_split(("read" + of_frame(label, token), 0, 1)) == shown or token.isalpha()
        assert key_split("read" + of_frame(label, "0" + token)) == shown


def test_names_hold_no_secrets(path: Path, http_server: HttpServer) -> None:
    url = http_server.put("a-1.b2nd", path.read_bytes())
    x = from_b2nd(f"{url}?signature=topsecret")
    assert x.name.startswith("read(a_1)-")
    assert "topsecret" not in str(list(x.__dask_graph__()))


def test_names_are_those_of_the_same_read(path: Path) -> None:
    assert from_b2nd(path).name == from_b2nd(path).name
    assert from_b2nd(path, chunks=(60, 100)).name != from_b2nd(path).name


@pytest.fixture(scope="module")
def cluster():  # type: ignore[no-untyped-def]
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def prefixes(client: Client) -> set[str]:
    """Prefixes by which the scheduler, and so the dashboard, groups tasks."""
    return set(client.cluster.scheduler.task_prefixes)


def test_a_cluster_shows_what_runs(cluster: Client, path: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(400, 300))
    source, new = tmp_path / "t2m-2020.b2nd", tmp_path / "copy.b2nd"
    to_b2nd(values, source, chunks=(10, 300))
    x = from_b2nd(source)
    np.testing.assert_allclose((x * 2 + 1).mean(axis=0).compute(), (values * 2 + 1).mean(axis=0))
    assert x.max().compute() == values.max()
    np.testing.assert_array_equal(x[::2].compute(), values[::2])
    np.testing.assert_array_equal(to_b2nd(x * 2, new).compute(), values * 2)
    shown = prefixes(cluster)
    assert shown >= {"read_mean(t2m_2020)", "read_max(t2m_2020)", "read(copy)"} | writing("copy")
    # no task reads under the old names
    assert "mean_chunk" not in shown
    # tasks that combine results keep dask's names
    assert "mean_combine-partial" in shown


def test_a_cluster_shows_reads_of_joined_frames(
    cluster: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dask_compat._Warned, "done", False)
    values = np.random.default_rng(0).normal(size=(4, 60, 50))
    paths = [tmp_path / f"d{i}.b2nd" for i in range(4)]
    for path, part in zip(paths, values, strict=True):
        to_b2nd(part, path, chunks=(10, 50))
    x = from_b2nd(paths, stack=True)
    assert x.name.startswith("read(d0_and_3)-")
    np.testing.assert_allclose(x.sum(axis=(0, 1)).compute(), values.sum(axis=(0, 1)))
    np.testing.assert_allclose(x[2:].mean().compute(), values[2:].mean())
    # reads of some of the frames have the name of all
    assert prefixes(cluster) >= {"read_sum(d0_and_3)", "read_mean(d0_and_3)"}
    assert not {"sum", "mean_chunk"} & prefixes(cluster)
    assert not _dask_compat._Warned.done


def test_a_key_stands_for_one_task_where_graphs_are_merged(tmp_path: Path) -> None:
    """dask optimizes `range` separately, and adds the result to the layers of `x`."""
    values = np.arange(1000.0)
    to_b2nd(values, tmp_path / "x.b2nd", chunks=(100,))
    x = from_b2nd(tmp_path / "x.b2nd")
    counts, edges = da.histogram(x, bins=100, range=[x.min(), x.max()])
    expected = np.histogram(values, bins=100, range=(0.0, 999.0))
    # raises if several layers have a task of one key
    assert_eq(counts, expected[0])
    assert_eq(edges, expected[1])


def test_a_row_that_is_broadcast_has_one_name_in_all_graphs(tmp_path: Path) -> None:
    def frame(name: str, array: np.ndarray) -> da.Array:
        blosc2.asarray(array, urlpath=str(tmp_path / name), chunks=(3,) * array.ndim)
        return from_b2nd(tmp_path / name)

    array, row = np.arange(48.0).reshape(6, 8), np.arange(8.0)
    x = frame("x.b2nd", array)
    first, second, other = (frame(f"{i}.b2nd", row + 10 * i) for i in range(3))
    product = first * second
    chosen = da.where(x > product, other, x)
    # the rows that one layer broadcasts depend on the other outputs
    wanted = [chosen + 1], [chosen + 2, product]
    graphs = [
        dict(da.Array.__dask_optimize__(HighLevelGraph.merge(*(a.dask for a in arrays)), keys))
        for arrays in wanted
        for keys in [[a.__dask_keys__() for a in arrays]]
    ]
    want = np.where(array > row * (row + 10), row + 20, array)
    # as a scheduler that has the tasks of the other graph
    for merged in (graphs[0] | graphs[1], graphs[1] | graphs[0]):
        for arrays, more in zip(wanted, (1, 2), strict=True):
            blocks = dask.get(merged, arrays[0].__dask_keys__())
            np.testing.assert_array_equal(np.block(list(map(list, blocks))), want + more)
