"""`open_million`: from a frame of very many chunks to a dask array, without computing it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.model import Case, Dataset, Scenario
from benchmarks.targets import megabytes_below, seconds_below

CHUNK = 100
SIDE = 1000
QUICK_SIDE = 100
NDENSE = 10


def scenarios(quick: bool) -> list[Scenario]:
    side = QUICK_SIDE if quick else SIDE
    return [
        _scenario("zeros", f"{side**2:,} chunks, all special (zeros)", side, 0),
        _scenario("ten-dense", f"{side**2:,} chunks, all special but {NDENSE}", side, NDENSE),
    ]


CASE = Case("open_million", "open a frame of a million chunks and build its graph", scenarios)


def _scenario(name: str, title: str, side: int, ndense: int) -> Scenario:
    recipe = {"side": side, "chunk": CHUNK, "ndense": ndense}
    return Scenario(
        name=name,
        title=f"{title}, float64, {CHUNK} x {CHUNK} items each; open and graph",
        datasets=(Dataset("b2nd", f"{name}.b2nd", recipe, partial(_write, side, ndense)),),
        contenders=(peers.b2nd_dask(_nothing), peers.dask_from_array(_nothing)),
        targets=(seconds_below(1.0), megabytes_below(300)),
        observe=_look_along_the_diagonal,
    )


def _nothing(array: Any) -> Any:
    return array


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
