"""`dense_sum`: add up all elements of an array that has no constant chunks."""

from __future__ import annotations

from benchmarks import dense, grids, machine, peers, peers_hdf5, peers_tensorstore
from benchmarks.arrays import ArrayData
from benchmarks.compression import COMPRESSIONS, Compression
from benchmarks.model import Case, Scenario
from benchmarks.targets import megabytes_below, speedup_over, times_as_long_as
from benchmarks.work import dask_sum


def scenarios(quick: bool) -> list[Scenario]:
    usual = [_scenario(how, dense.nchunks(quick)) for how in COMPRESSIONS]
    return usual + [
        _of_chunks(grids.matrix_of_rows(how, quick, size), f"{how.name} {size} MB")
        for how in COMPRESSIONS
        for size in grids.CHUNK_MEGABYTES
    ]


CASE = Case("dense_sum", "sum of a dense float64 array", scenarios)


def _scenario(how: Compression, nchunks: int) -> Scenario:
    return Scenario(
        name=how.name,
        title=dense.title(how, nchunks),
        datasets=dense.array(how, nchunks).datasets,
        contenders=(
            peers.b2nd_dask(dask_sum),
            peers.b2nd_dask(dask_sum, chunks="auto"),
            peers.python_blosc2(lambda array: array.sum()),
            peers.dask_from_array(dask_sum),
            peers.dask_from_zarr(dask_sum),
            peers_tensorstore.dask_from_tensorstore(dask_sum),
            peers_hdf5.dask_from_h5py(dask_sum),
            peers.raw_limit_of_sum(),
            peers.raw_limit_of_sum(reading=True),
        ),
        targets=(
            times_as_long_as(peers.RAW_LIMIT, 1.2),
            times_as_long_as(peers.RAW_LIMIT_READING, 1.2),
            speedup_over(peers.PYTHON_BLOSC2, 1.3),
            speedup_over(peers.FROM_ZARR, 2.5),
            # three chunks a thread, of which there is one a core unless the run says otherwise
            megabytes_below(3 * machine.usable_cores() * dense.CHUNK * dense.ITEM / 1e6),
        ),
        rtol=1e-12,
    )


def _of_chunks(array: ArrayData, name: str) -> Scenario:
    return Scenario(
        name=name,
        title=array.title(),
        datasets=(array.b2nd, array.zarr),
        contenders=(
            peers.b2nd_dask(dask_sum),
            peers.python_blosc2(lambda opened: opened.sum()),
            peers.dask_from_zarr(dask_sum),
            peers.raw_limit_of_sum(reading=True),
        ),
        targets=(speedup_over(peers.PYTHON_BLOSC2, 1.2), speedup_over(peers.FROM_ZARR, 1.2)),
        rtol=1e-12,
    )
