"""`persisted`: an array that stays in the memory of a cluster, as it is or compressed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import dense, peers
from benchmarks.arrays import B2ND
from benchmarks.clusters import name_on_cluster, on_cluster
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Counted, Dataset, Paths, Run, Scenario
from benchmarks.targets import counted_times_less_than, times_as_long_as

HELD = "MB held"
#: Rows of a chunk of the mask, and how many bands of them there are in quick runs.
MASK_CHUNK = 2160
QUICK_BANDS = 1
NCHUNKS = 250
#: How much less memory compressed blocks must take.
LESS = 5

PERSISTED = "persist"
COMPRESSED = "b2nd_dask.persist_compressed"
ANEW = "b2nd_dask, read each time"

#: To an array that stays in memory; none where it is read each time.
Persist = Callable[[Any], Any]


def scenarios(quick: bool) -> list[Scenario]:
    count = dense.QUICK_NCHUNKS if quick else NCHUNKS
    return [
        _scenario(
            "land mask",
            "the mask of global-land-mask" + (", its northern part" if quick else ""),
            _mask(QUICK_BANDS if quick else None),
        ),
        _scenario("rounded floats", dense.title(ZSTD, count), dense.array(ZSTD, count).b2nd),
    ]


CASE = Case("persisted", "an array in the memory of a cluster, read three times", scenarios)


def _scenario(name: str, text: str, dataset: Dataset) -> Scenario:
    contenders = (
        Contender(COMPRESSED, partial(_prepare, _compressed), is_ours=True),
        Contender(PERSISTED, partial(_prepare, lambda array: array.persist())),
        Contender(ANEW, partial(_prepare, lambda array: array), is_ours=True),
    )
    ours, plain = map(name_on_cluster, (COMPRESSED, PERSISTED))
    return Scenario(
        name=name,
        title=f"{text}; kept by the workers, then `x.sum()`, `x.mean()` and `x.max()`, one after "
        "the other; memory and CPU of all processes together",
        datasets=(dataset,),
        contenders=tuple(map(on_cluster, contenders)),
        targets=(
            counted_times_less_than(plain, HELD, LESS, ours),
            times_as_long_as(plain, 2, ours),
        ),
        rtol=1e-12,
        all_processes=True,
    )


def _prepare(persist: Persist, paths: Paths, threads: int) -> Run:
    from b2nd_dask import from_b2nd

    peers.use_dask_threads(threads)
    return lambda: _reduced(persist(from_b2nd(paths[B2ND])))


def _compressed(array: Any) -> Any:
    from b2nd_dask import persist_compressed

    return persist_compressed(array)


def _reduced(array: Any) -> Counted:
    from distributed import default_client, wait

    wait(array)
    held = default_client().run_on_scheduler(_managed)
    values = [float(one.compute()) for one in (array.sum(), array.mean(), array.max())]
    return Counted(values, lambda: {HELD: held / 1e6})


def _managed(dask_scheduler: Any) -> int:
    """Bytes of the results that workers hold."""
    return sum(worker.nbytes for worker in dask_scheduler.workers.values())


def _mask(bands: int | None) -> Dataset:
    recipe = {"data": "global-land-mask, true over land", "chunk": MASK_CHUNK, "bands": bands}
    needs = ("global_land_mask",)
    return Dataset(B2ND, "mask.b2nd", recipe, partial(_write_mask, bands), needs)


def _write_mask(bands: int | None, path: Path) -> None:
    from b2nd_dask.edges.cli.demo import find_mask, land_bands, write_frame

    mask = find_mask()
    assert mask is not None
    rows = islice(land_bands(mask, MASK_CHUNK), bands)
    write_frame(rows, path, MASK_CHUNK)
