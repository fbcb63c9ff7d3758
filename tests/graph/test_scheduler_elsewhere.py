"""Graphs are optimized by the scheduler, which often sees no files and lacks the package."""

import pickle
from urllib.parse import urlsplit

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import optimization

from b2nd_dask import from_b2nd, to_b2nd
from b2nd_dask.frame.open import cache
from b2nd_dask.graph.tasks import reduce_block
from tests.graph.commands import LACKS_PACKAGE, REFUSES_FILES_AND_PORT, cluster

ARRAY = np.random.default_rng(3).normal(size=(60, 40))
PROGRAMS = {
    "sum": lambda x: x.sum(),
    "slice behind work": lambda x: (x * 2)[5:7],
    "deviation": lambda x: x - x.mean(),
    "list": lambda x: (x + 1)[[3, 50, 3]],
    "columns": lambda x: x.std(axis=0),
}


def write(folder):
    folder.mkdir(exist_ok=True)
    path = folder / "x.b2nd"
    blosc2.asarray(ARRAY, urlpath=str(path), chunks=(10, 10), blocks=(5, 5))
    return path


def agree(x):
    names = sorted(PROGRAMS)
    got = dask.compute(*(PROGRAMS[name](x) for name in names))
    plain = da.from_array(ARRAY, chunks=x.chunks)
    want = dask.compute(*(PROGRAMS[name](plain) for name in names), scheduler="sync")
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.slow
def test_a_scheduler_that_sees_neither_files_nor_servers(tmp_path, http_server):
    path = write(tmp_path / "frames")
    url = http_server.put("elsewhere.b2nd", path.read_bytes())
    port = urlsplit(url).port
    preload = REFUSES_FILES_AND_PORT.format(folder=str(path.parent), port=port)
    with cluster(tmp_path / "cluster", preload) as client:
        # the scheduler raises an error as it should: otherwise this test would show nothing
        with pytest.raises(PermissionError, match="does not see"):
            client.run_on_scheduler(path.open)
        agree(from_b2nd(path))
        agree(from_b2nd(url))
        copied = to_b2nd(from_b2nd(path) * 2, path.with_name("twice.b2nd"))
        np.testing.assert_array_equal(copied.compute(), ARRAY * 2)


@pytest.mark.slow
def test_a_scheduler_without_the_package(tmp_path):
    path = write(tmp_path / "frames")
    with cluster(tmp_path / "cluster", LACKS_PACKAGE):
        ones = da.ones(10, chunks=5)
        assert ones.sum().compute() == 10
        assert dask.compute(ones.sum(), da.zeros(3), ones[2:].sum())[2] == 8
        with pytest.raises(RuntimeError, match="Scheduler and Client") as caught:
            from_b2nd(path).sum().compute()
        assert "b2nd_dask" in str(caught.value.__cause__)


class Wrapped:
    """A collection that got dask's array optimizer before this package was imported."""

    __dask_optimize__ = staticmethod(optimization.optimize)
    __dask_scheduler__ = staticmethod(dask.get)

    def __init__(self, array):
        self.dask = array.dask
        self._array = array

    def __dask_graph__(self):
        return self.dask

    def __dask_keys__(self):
        return self._array.__dask_keys__()

    def __dask_postcompute__(self):
        return self._array.__dask_postcompute__()


def test_results_keep_their_order_beside_arrays_of_others(tmp_path):
    x, ones = from_b2nd(write(tmp_path)), da.ones(10, chunks=5)
    wanted = [x.max(), Wrapped(ones.sum()), x.min(), Wrapped(ones[2:].sum()), ones.max()]
    got = dask.compute(*wanted, scheduler="sync")
    assert got == (ARRAY.max(), 10, ARRAY.min(), 8, 1)


def test_optimizing_opens_nothing(tmp_path):
    path = write(tmp_path)
    x = from_b2nd(path)
    sent = pickle.dumps(
        [(program(x).dask, program(x).__dask_keys__()) for program in PROGRAMS.values()]
    )
    total = pickle.dumps((x.sum().dask, x.sum().__dask_keys__()))
    path.unlink()
    # as in a process that has not opened it before
    cache.process_cache.clear()
    for graph, keys in pickle.loads(sent):
        assert da.Array.__dask_optimize__(graph, keys)
    graph = da.Array.__dask_optimize__(*pickle.loads(total))
    assert any(getattr(node, "func", None) is reduce_block for node in graph.values())
