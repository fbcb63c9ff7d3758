"""`statistics`: what a frame tells of its chunks, instead of being read, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense, grids, peers, writers
from benchmarks.arrays import B2ND, ArrayData
from benchmarks.compression import COMPRESSIONS, ZSTD, Compression
from benchmarks.model import Case, Contender, Dataset, Paths, Run, Scenario, Target
from benchmarks.targets import seconds_below, times_as_long_as

Work = Callable[[Any], Any]

#: Greater than every element of both arrays.
ABOVE = 1e9
#: The same expression for dask arrays and for `blosc2.NDArray`.
WORKS: dict[str, tuple[str, Work]] = {
    "mean": ("x.mean()", lambda x: x.mean()),
    "max": ("x.max()", lambda x: x.max()),
    "any above": (f"(x > {ABOVE:g}).any()", lambda x: (x > ABOVE).any()),
}
UNUSED = f"{peers.OURS}, statistics off"
UNUSED_AUTO = f"{peers.OURS_AUTO}, statistics off"
WITHOUT, WITH = "to_b2nd", "to_b2nd, stats=True"

MANY_CHUNKS = 10**6
QUICK_MANY_CHUNKS = 10**4
#: Elements of a chunk where there are many, and chunks that are written at once.
SMALL_CHUNK, BATCH = 64, 1000
#: What writing statistics may add to the time of a write.
COSTS = {"zstd": 1.05, "lz4": 1.08}


def scenarios(quick: bool) -> list[Scenario]:
    return [
        *(_dense(name, dense.nchunks(quick)) for name in WORKS),
        *(_many_chunks(name, quick) for name in WORKS),
        *(_write(how, quick) for how in COMPRESSIONS),
    ]


CASE = Case("statistics", "answers from statistics of chunks, and writing these", scenarios)


def _dense(name: str, nchunks: int) -> Scenario:
    array = dense.array(ZSTD, nchunks)
    text, work = WORKS[name]
    computed, alone = _computed(work), _alone(work)
    return Scenario(
        name=name,
        title=f"{dense.title(ZSTD, nchunks)}, written with `stats=True`; `{text}`",
        datasets=(with_statistics(array), array.zarr),
        contenders=(
            peers.b2nd_dask(computed),
            peers.b2nd_dask(computed, chunks="auto"),
            _statistics_off(computed),
            _statistics_off(computed, chunks="auto"),
            peers.python_blosc2(alone),
            peers.dask_from_zarr(computed),
        ),
        targets=_targets(0.01),
        rtol=1e-12,
    )


def _many_chunks(name: str, quick: bool) -> Scenario:
    count = QUICK_MANY_CHUNKS if quick else MANY_CHUNKS
    text, work = WORKS[name]
    computed = _computed(work)
    # these need half a minute or more for a million chunks, and a task for each chunk as long
    others = (_statistics_off(computed, chunks="auto"), peers.python_blosc2(_alone(work)))
    return Scenario(
        name=f"{name}, many chunks",
        title=f"{count:,} chunks of {SMALL_CHUNK} float64, none special, written with "
        f"`stats=True`; `{text}`",
        datasets=(_ramp(count),),
        contenders=(
            peers.b2nd_dask(computed, chunks="auto"),
            *(others if quick else ()),
        ),
        targets=_targets(0.5),
        observe=partial(_require_of_ramp, count, name),
        rtol=1e-12,
    )


def _write(how: Compression, quick: bool) -> Scenario:
    array = grids.matrix(how, quick)
    source = partial(writers.from_memory, array)
    plain = writers.b2nd_dask(source, array, synced=False, name=WITHOUT)
    return Scenario(
        name=f"write {how.name}",
        title=f"{array.title()}; {writers.how_synced(False)}",
        datasets=(),
        contenders=(
            plain,
            writers.b2nd_dask(source, array, synced=False, name=WITH, stats=True),
        ),
        targets=(times_as_long_as(WITHOUT, COSTS[how.codec], WITH),),
        observe=partial(writers.require_equal, array.pieces),
        writes=True,
    )


def _targets(seconds: float) -> tuple[Target, ...]:
    return (seconds_below(seconds, peers.OURS, peers.OURS_AUTO),)


def _computed(work: Work) -> Work:
    return lambda opened: float(work(opened).compute())


def _alone(work: Work) -> Work:
    return lambda opened: float(work(opened)[()])


def _statistics_off(work: Work, *, chunks: Any = None) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        import dask

        from b2nd_dask import from_b2nd

        dask.config.set({"b2nd_dask.statistics": False})
        peers.use_dask_threads(threads)
        return lambda: work(from_b2nd(paths[B2ND], chunks=chunks))

    return Contender(UNUSED if chunks is None else UNUSED_AUTO, prepare)


def with_statistics(array: ArrayData) -> Dataset:
    """The frame of an array, written with statistics of its chunks."""
    recipe = {**array.recipe, "statistics": True}
    return Dataset(B2ND, "statistics.b2nd", recipe, partial(_write_array, array))


def _write_array(array: ArrayData, path: Path) -> None:
    from b2nd_dask import to_b2nd

    params = array.how.blosc2_params()
    options = {"chunks": array.chunks, "blocks": array.blocks, "cparams": params}
    to_b2nd(array.in_memory(), path, stats=True, **options)


def _ramp(count: int) -> Dataset:
    """Eighths from 0 on: no chunk is special, and each takes few bytes."""
    recipe = {
        "data": "eighths from 0 on",
        "nchunks": count,
        "chunk": SMALL_CHUNK,
        "codec": ZSTD.codec,
        "clevel": ZSTD.clevel,
        "statistics": True,
    }
    return Dataset(B2ND, "ramp.b2nd", recipe, partial(_write_ramp, count))


def _write_ramp(count: int, path: Path) -> None:
    import dask.array as da

    from b2nd_dask import to_b2nd

    sizes = ((BATCH * SMALL_CHUNK,) * (count // BATCH),)
    values = da.map_blocks(_ramp_values, chunks=sizes, dtype=np.float64)
    chunks = (SMALL_CHUNK,)
    params = ZSTD.blosc2_params()
    to_b2nd(values, path, chunks=chunks, blocks=chunks, cparams=params, stats=True)


def _ramp_values(block_id: tuple[int, ...] = ()) -> NDArray[np.float64]:
    length = BATCH * SMALL_CHUNK
    return (block_id[0] * length + np.arange(length)) / 8


def _require_of_ramp(count: int, name: str, found: float) -> float:
    last = (count * SMALL_CHUNK - 1) / 8
    expected = {"mean": last / 2, "max": last, "any above": 0.0}
    np.testing.assert_allclose(found, expected[name], rtol=1e-12)
    return found
