"""`several_writers`: processes that write disjoint regions of one array at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense, peers
from benchmarks.compression import ZSTD
from benchmarks.model import TARGET, Case, Contender, Paths, Run, Scenario
from benchmarks.targets import speedup_over
from benchmarks.writers import require_equal

WRITERS = 4
NCHUNKS = 144
QUICK_NCHUNKS = 16

REGIONS = "b2nd_dask, regions of a frame (fsync)"
PARTS = "b2nd_dask, staged parts and a commit (fsync)"
ALONE = "b2nd_dask, one process (fsync)"
ZARR = "zarr (no fsync)"

#: Begins an array, writes its elements from some chunk on, ends it.
Begin = Callable[[Path, int], None]
WritePart = Callable[[Path, int, NDArray[Any]], None]
End = Callable[[Path], None]


def scenarios(quick: bool) -> list[Scenario]:
    count = QUICK_NCHUNKS if quick else NCHUNKS
    of_frames = {"begin": _begin_frame, "write": _write_region, "end": _nothing}
    of_parts = {"begin": _begin_parts, "write": _write_part, "end": _commit_parts}
    of_zarr = {"begin": _begin_zarr, "write": _write_zarr, "end": _nothing}
    return [
        Scenario(
            name="regions",
            title=f"{dense.title(ZSTD, count)}; {WRITERS} processes of one thread, each with its "
            "share of the array in memory, write their regions at the same time; the processes "
            "are there before; memory and CPU of all together",
            datasets=(),
            contenders=(
                Contender(REGIONS, partial(_prepare, count, **of_frames), is_ours=True),
                Contender(PARTS, partial(_prepare, count, **of_parts), is_ours=True),
                Contender(ALONE, partial(_prepare_alone, count), is_ours=True),
                Contender(ZARR, partial(_prepare, count, **of_zarr)),
            ),
            targets=(speedup_over(ZARR, 1, REGIONS, PARTS),),
            observe=partial(require_equal, partial(dense.values, count)),
            writes=True,
            all_processes=True,
        )
    ]


CASE = Case("several_writers", "processes that write one array together", scenarios)

#: In a writer process: its share of the array.
_share: list[NDArray[np.float64]] = []


def _prepare(
    count: int, paths: Paths, threads: int, *, begin: Begin, write: WritePart, end: End
) -> Run:
    peers.use_dask_threads(1)
    # one for each share: in a single pool any process would take any task
    pools = [
        ProcessPoolExecutor(1, get_context("spawn"), _load_share, (count, number))
        for number in range(WRITERS)
    ]
    for started in [pool.submit(_import) for pool in pools]:
        started.result()
    path = paths[TARGET] / "array"

    def run() -> Callable[[], Any]:
        begin(path, count)
        for written in [
            pool.submit(_write_share, write, path, count, number)
            for number, pool in enumerate(pools)
        ]:
            written.result()
        end(path)
        return partial(_open, path)

    return run


def _prepare_alone(count: int, paths: Paths, threads: int) -> Run:
    import dask.array as da

    from b2nd_dask import to_b2nd

    peers.use_dask_threads(threads)
    array = da.from_array(dense.in_memory(count), chunks=dense.CHUNK)
    path = paths[TARGET] / "array"

    def run() -> Callable[[], Any]:
        to_b2nd(array, path, **_params())
        return partial(_open, path)

    return run


def _params() -> dict[str, Any]:
    return {"chunks": dense.CHUNK, "blocks": dense.BLOCK, "cparams": ZSTD.blosc2_params()}


def _load_share(count: int, number: int) -> None:
    first, stop = _bounds(count, number)
    chunks = (items for _, items in islice(dense.values(stop), first, stop))
    _share.append(np.concatenate(list(chunks)))


def _bounds(count: int, number: int) -> tuple[int, int]:
    """The chunks of a writer."""
    return number * count // WRITERS, (number + 1) * count // WRITERS


def _import() -> None:
    import zarr  # noqa: F401

    import b2nd_dask  # noqa: F401

    peers.use_dask_threads(1)
    peers.use_zarr_threads(1)


def _write_share(write: WritePart, path: Path, count: int, number: int) -> None:
    first, _ = _bounds(count, number)
    write(path, first * dense.CHUNK, _share[0])


def _nothing(path: Path) -> None:
    """There is nothing to end."""


def _begin_frame(path: Path, count: int) -> None:
    import dask.array as da

    from b2nd_dask import to_b2nd

    to_b2nd(da.zeros(count * dense.CHUNK, chunks=dense.CHUNK), path, **_params())


def _write_region(path: Path, start: int, items: NDArray[Any]) -> None:
    from b2nd_dask import to_b2nd

    to_b2nd(items, path, mode="r+", region=slice(start, start + len(items)))


def _begin_parts(path: Path, count: int) -> None:
    from b2nd_dask import create

    create(path, count * dense.CHUNK, np.float64, **_params())


def _write_part(path: Path, start: int, items: NDArray[Any]) -> None:
    from b2nd_dask import to_b2nd

    to_b2nd(items, path, mode="stage", region=slice(start, start + len(items)))


def _commit_parts(path: Path) -> None:
    from b2nd_dask import commit

    commit(path)


def _begin_zarr(path: Path, count: int) -> None:
    import zarr

    zarr.create_array(
        str(path),
        shape=(count * dense.CHUNK,),
        chunks=(dense.CHUNK,),
        dtype=np.float64,
        compressors=ZSTD.zarr_codec(dense.ITEM, dense.BLOCK * dense.ITEM),
    )


def _write_zarr(path: Path, start: int, items: NDArray[Any]) -> None:
    import zarr

    zarr.open_array(str(path), mode="r+")[start : start + len(items)] = items


def _open(path: Path) -> Any:
    if path.is_dir():
        import zarr

        return zarr.open_array(str(path), mode="r")
    import blosc2

    return blosc2.open(str(path), mode="r")
