"""tensorstore on the zarr store, alone and under dask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.arrays import ZARR
from benchmarks.model import Contender, Paths, Run
from benchmarks.peers import Work, use_dask_threads

TENSORSTORE = "tensorstore"
FROM_TENSORSTORE = "da.from_array(tensorstore)"
NEEDS = ("tensorstore",)


def tensorstore_alone(work: Work) -> Contender:
    """With its own threads; `work` gets the `TensorStore`, whose views `read()` reads."""

    def prepare(paths: Paths, threads: int) -> Run:
        open_store = opener(_file(paths), threads)
        return lambda: work(open_store())

    return Contender(TENSORSTORE, prepare, needs=NEEDS)


def dask_from_tensorstore(work: Work) -> Contender:
    """One task for each chunk; reading releases the GIL, and dask's threads wait for its own."""

    def prepare(paths: Paths, threads: int) -> Run:
        use_dask_threads(threads)
        open_store = opener(_file(paths), threads)
        return lambda: work(dask_array(open_store()))

    return Contender(FROM_TENSORSTORE, prepare, needs=NEEDS)


def opener(kvstore: dict[str, Any], threads: int) -> Callable[[], Any]:
    import tensorstore

    context = tensorstore.Context(
        {
            "data_copy_concurrency": {"limit": threads},
            "file_io_concurrency": {"limit": threads},
            # no cache of decoded chunks: no other contender has one
            "cache_pool": {"total_bytes_limit": 0},
        }
    )
    spec = {"driver": "zarr3", "kvstore": kvstore}
    return lambda: tensorstore.open(spec, context=context, open=True, read=True).result()


def dask_array(store: Any) -> Any:
    import dask.array as da

    chunks = store.chunk_layout.read_chunk.shape
    # its own name, since a token would read the array
    return da.from_array(_Readable(store), chunks=chunks, name=False)


class _Readable:
    """An array for dask: NumPy's dtype, and indexing that reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.shape = tuple(store.shape)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(store.dtype.numpy_dtype)

    def __getitem__(self, index: Any) -> Any:
        # a view keeps the coordinates of its slice, the array that it is read into begins at 0
        return self._store[index].read().result()


def _file(paths: Paths) -> dict[str, Any]:
    return {"driver": "file", "path": f"{paths[ZARR]}/"}
