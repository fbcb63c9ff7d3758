"""Contenders of `dask_array`: over a frame by b2nd_dask, over a `Frame`, and over zarr.

Its import changes dask's configuration (`array.rechunk.threshold`) and tokens, and its registration
changes xarray: only processes of its contenders import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.arrays import B2ND, ZARR
from benchmarks.model import Contender, Paths, Run
from benchmarks.peers import Work, use_dask_threads, use_zarr_threads

OURS = "b2nd_dask array_type='dask-array'"
FROM_FRAME = "dask_array.from_array(Frame)"
FROM_ZARR = "dask_array.from_zarr"
NEEDS = ("dask_array",)
#: Returns a function that makes an array, from the paths of the data and the number of threads.
Source = Callable[[Paths, int], Callable[[], Any]]


def b2nd_dask(work: Work) -> Contender:
    """b2nd_dask; `work` gets the array of `dask_array`."""
    return replace(_contender(OURS, of_b2nd, work), is_ours=True)


def from_frame(work: Work) -> Contender:
    """`dask_array` over a `Frame`, which decodes only in the threads of its tasks."""
    return _contender(FROM_FRAME, of_frame, work)


def from_zarr(work: Work) -> Contender:
    """`dask_array` over zarr 3."""
    return _contender(FROM_ZARR, of_zarr, work)


def of_b2nd(paths: Paths, threads: int) -> Callable[[], Any]:
    from b2nd_dask import from_b2nd

    use_dask_array()
    return lambda: from_b2nd(paths[B2ND], array_type="dask-array")


def of_frame(paths: Paths, threads: int) -> Callable[[], Any]:
    from b2nd_dask import open_b2nd

    dask_array = use_dask_array()

    def made() -> Any:
        frame = open_b2nd(paths[B2ND])
        return dask_array.from_array(frame, chunks=frame.chunks)

    return made


def of_zarr(paths: Paths, threads: int) -> Callable[[], Any]:
    dask_array = use_dask_array()
    use_zarr_threads(threads)
    return lambda: dask_array.from_zarr(str(paths[ZARR]))


def use_dask_array() -> Any:
    """Import the library, and register its arrays with xarray."""
    import dask_array

    dask_array.xarray.register()
    return dask_array


def _contender(name: str, source: Source, work: Work) -> Contender:
    """One task for each chunk, as the libraries choose by default."""

    def prepare(paths: Paths, threads: int) -> Run:
        use_dask_threads(threads)
        made = source(paths, threads)
        return lambda: work(made())

    return Contender(name, prepare, needs=NEEDS)
