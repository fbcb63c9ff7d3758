"""`small_reads`: few elements of an image or a volume, where what is read takes milliseconds."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from benchmarks import grids, observing, peers, peers_hdf5, peers_tensorstore
from benchmarks.arrays import B2ND, ArrayData
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Counted, Paths, Run, Scenario, Target
from benchmarks.targets import milliseconds_more_than, speedup_over, times_as_long_as

Selection = tuple[Any, ...]

IN_STEPS = f"{peers.OURS} in steps"
THROUGH_DASK = (peers.OURS, peers.OURS_AUTO)
ALL = slice(None)
#: Inside of a block and a chunk, at the border of neither; the window lies in four chunks.
IMAGE: dict[str, tuple[str, Selection]] = {
    "row": ("x[1201]", (1201, ALL)),
    "column": ("x[:, 1201]", (ALL, 1201)),
    "window": ("x[850:1150, 1850:2150]", (slice(850, 1150), slice(1850, 2150))),
    "every 100th": ("x[::100, ::100]", (slice(None, None, 100), slice(None, None, 100))),
    "element": ("x[1201, 2201]", (1201, 2201)),
}
VOLUME: dict[str, tuple[str, Selection]] = {
    "plane across axis 0": ("x[201]", (201, ALL, ALL)),
    "plane across axis 1": ("x[:, 201]", (ALL, 201, ALL)),
    "plane across axis 2": ("x[:, :, 201]", (ALL, ALL, 201)),
}


def scenarios(quick: bool) -> list[Scenario]:
    return [
        _scenario(name, array, text, index)
        for array, selections in (
            (grids.image(quick), IMAGE),
            (grids.volume(ZSTD, quick), VOLUME),
        )
        for name, (text, index) in selections.items()
    ]


CASE = Case(
    "small_reads", "small parts of 2-D and 3-D float32 arrays, and what they cost", scenarios
)


def _scenario(name: str, array: ArrayData, text: str, index: Selection) -> Scenario:
    def direct(opened: Any) -> Any:
        return opened[index]

    def through_dask(opened: Any) -> Any:
        return opened[index].compute()

    return Scenario(
        name=name,
        title=f"{array.title()}; `{text}`",
        datasets=array.datasets,
        contenders=(
            peers.b2nd_dask(through_dask),
            peers.b2nd_dask(through_dask, chunks="auto"),
            _in_steps(index),
            peers.open_b2nd(direct),
            peers.python_blosc2(direct),
            peers.zarr_alone(direct),
            peers_tensorstore.tensorstore_alone(lambda store: store[index].read().result()),
            peers_hdf5.h5py_alone(direct),
            peers.dask_from_array(through_dask),
            peers.dask_from_zarr(through_dask),
            peers_tensorstore.dask_from_tensorstore(through_dask),
        ),
        targets=_sample_targets() if name == "every 100th" else _targets(),
        observe=observing.digest,
    )


def _targets() -> tuple[Target, ...]:
    return (
        milliseconds_more_than(peers.PYTHON_BLOSC2, 3, *THROUGH_DASK, peers.OPEN_B2ND),
        speedup_over(peers.FROM_ZARR, 5, *THROUGH_DASK),
        speedup_over(peers.ZARR_ALONE, 5, peers.OPEN_B2ND),
    )


def _sample_targets() -> tuple[Target, ...]:
    return (
        times_as_long_as(peers.PYTHON_BLOSC2, 1.0, *THROUGH_DASK, peers.OPEN_B2ND),
        speedup_over(peers.FROM_ZARR, 3, *THROUGH_DASK),
        speedup_over(peers.ZARR_ALONE, 3, peers.OPEN_B2ND),
    )


def _in_steps(index: Selection) -> Contender:
    """`from_b2nd(p)[index].compute()` as the steps that it is made of, with the time of each."""

    def prepare(paths: Paths, threads: int) -> Run:
        import dask

        from b2nd_dask import from_b2nd, open_b2nd

        peers.use_dask_threads(threads)

        def run() -> Counted:
            times = [perf_counter()]
            frame = open_b2nd(paths[B2ND])
            times.append(perf_counter())
            array = from_b2nd(frame)[index]
            times.append(perf_counter())
            (optimized,) = dask.optimize(array)
            times.append(perf_counter())
            result = optimized.compute(optimize_graph=False)
            times.append(perf_counter())
            return Counted(result, lambda: _parts(times))

        return run

    return Contender(IN_STEPS, prepare, is_ours=True)


def _parts(times: list[float]) -> dict[str, float]:
    names = ("ms open", "ms graph", "ms optimize", "ms schedule and read")
    spans = zip(names, times, times[1:], strict=False)
    return {name: (end - start) * 1e3 for name, start, end in spans}
