"""`open_million`: a frame of very many chunks: opened, one element of it, all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.model import Case, Contender, Dataset, Scenario, Target
from benchmarks.targets import megabytes_below, seconds_below

CHUNK = 100
SIDE = 1000
QUICK_SIDE = 100
NDENSE = 10
MEMORY_MB = 500


def scenarios(quick: bool) -> list[Scenario]:
    side = QUICK_SIDE if quick else SIDE
    opening = (peers.b2nd_dask(_nothing), peers.dask_from_array(_nothing))
    fast = (seconds_below(1.0, peers.OURS), megabytes_below(MEMORY_MB))
    return [
        _scenario("zeros", side, 0, "open and graph", opening, fast),
        _scenario("ten-dense", side, NDENSE, "open and graph", opening, fast),
        _scenario(
            "first element",
            side,
            NDENSE,
            "open and `x[0, 0]`",
            (
                peers.open_b2nd(lambda frame: frame[0, 0]),
                peers.b2nd_dask(_first_item),
                peers.b2nd_dask(_first_item, chunks="auto"),
                peers.python_blosc2(lambda array: array[0, 0]),
                peers.dask_from_array(_first_item),
            ),
            (megabytes_below(MEMORY_MB),),
            float,
        ),
        _scenario(
            "sum",
            side,
            NDENSE,
            "open and `x.sum()`",
            # one task for each chunk takes the others, and python-blosc2 alone, minutes
            (peers.b2nd_dask(_sum, chunks="auto"), peers.dask_from_array(_sum, chunks="auto"))
            if quick
            else (peers.b2nd_dask(_sum, chunks="auto"),),
            (seconds_below(10), megabytes_below(MEMORY_MB)),
            float,
        ),
    ]


CASE = Case("open_million", "open a frame of a million chunks, and use it", scenarios)


def _scenario(
    name: str,
    side: int,
    ndense: int,
    work: str,
    contenders: Sequence[Contender],
    targets: Sequence[Target],
    observe: Callable[[Any], Any] | None = None,
) -> Scenario:
    chunks = f"{side**2:,} chunks, all special" + (f" but {ndense}" if ndense else " (zeros)")
    return Scenario(
        name=name,
        title=f"{chunks}, float64, {CHUNK} x {CHUNK} elements each; {work}",
        datasets=(dataset(side, ndense),),
        contenders=contenders,
        targets=targets,
        observe=observe or _look_along_the_diagonal,
        rtol=1e-12,
    )


def dataset(side: int, ndense: int) -> Dataset:
    recipe = {"side": side, "chunk": CHUNK, "ndense": ndense}
    stem = "ten-dense" if ndense else "zeros"
    return Dataset("b2nd", f"{stem}.b2nd", recipe, partial(_write, side, ndense))


def _nothing(array: Any) -> Any:
    return array


def _first_item(array: Any) -> Any:
    return array[0, 0].compute()


def _sum(array: Any) -> Any:
    return array.sum().compute()


def _dense_starts(nchunks: int) -> range:
    """Where the dense chunks begin, along both axes."""
    return range(0, nchunks * CHUNK, nchunks * CHUNK // NDENSE)


def _look_along_the_diagonal(array: Any) -> NDArray[np.float64]:
    corners = (slice(start, start + 2) for start in _dense_starts(array.numblocks[0]))
    items = [array[corner, corner].compute().ravel() for corner in corners]
    return np.concatenate([array.shape, array.numblocks, *items])


def _write(side: int, ndense: int, path: Path) -> None:
    import blosc2

    array = blosc2.zeros(
        (side * CHUNK, side * CHUNK),
        np.float64,
        chunks=(CHUNK, CHUNK),
        blocks=(CHUNK, CHUNK),
        urlpath=str(path),
    )
    rng = np.random.default_rng(side)
    for start in _dense_starts(side)[:ndense]:
        corner = slice(start, start + CHUNK)
        array[corner, corner] = rng.random((CHUNK, CHUNK))
