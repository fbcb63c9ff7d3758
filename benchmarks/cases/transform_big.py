"""`transform_big`: much more data than memory, from frame to frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.model import TARGET, Case, Contender, Dataset, Paths, Run, Scenario
from benchmarks.targets import completes, resident_below, times_as_long_as
from benchmarks.writers import require_equal

CHUNK = 1_000_000
NCHUNKS = 2500
QUICK_NCHUNKS = 25
#: Bytes of private memory; see `benchmarks.memory.limit`.
LIMIT = 10**9
#: Items of the pattern that a chunk repeats; each chunk has its own.
PATTERN = 1000


def scenarios(quick: bool) -> list[Scenario]:
    nchunks = QUICK_NCHUNKS if quick else NCHUNKS
    recipe = {"nchunks": nchunks, "chunk": CHUNK, "pattern": PATTERN}
    ours = Contender(peers.OURS, _prepare, is_ours=True)
    in_bounds = peers.bounded(ours, LIMIT)
    return [
        Scenario(
            name="patterns",
            title=f"{nchunks * CHUNK * 8 / 1e9:.1f} GB float64 in chunks of {CHUNK * 8 / 1e6:g} MB "
            "that repeat patterns, `from_b2nd(p).map_blocks(f).to_b2nd(q)`, without a bound and "
            f"with {LIMIT >> 20} MiB of private memory (RLIMIT_DATA)",
            datasets=(Dataset("b2nd", "patterns.b2nd", recipe, partial(_write, nchunks)),),
            contenders=(ours, in_bounds),
            targets=(
                resident_below(1000),
                completes(in_bounds.name),
                times_as_long_as(ours.name, 1.2, in_bounds.name),
            ),
            observe=partial(require_equal, partial(_expected, nchunks)),
            writes=True,
        )
    ]


CASE = Case("transform_big", "20 GB from frame to frame in little memory", scenarios, False)


def _prepare(paths: Paths, threads: int) -> Run:
    import blosc2

    from b2nd_dask import from_b2nd, to_b2nd

    peers.use_dask_threads(threads)
    target = paths[TARGET] / "array.b2nd"

    def run() -> Callable[[], Any]:
        to_b2nd(from_b2nd(paths["b2nd"]).map_blocks(_transformed), target)
        return lambda: blosc2.open(str(target), mode="r")

    return run


def _transformed(items: NDArray[np.float64]) -> NDArray[np.float64]:
    return items * 2 + 1


def _values(nchunks: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for i in range(nchunks):
        pattern = i + np.arange(PATTERN) / 8
        yield slice(i * CHUNK, (i + 1) * CHUNK), np.tile(pattern, CHUNK // PATTERN)


def _expected(nchunks: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for where, items in _values(nchunks):
        yield where, _transformed(items)


def _write(nchunks: int, path: Path) -> None:
    import blosc2

    array = blosc2.empty(
        (nchunks * CHUNK,),
        np.float64,
        chunks=(CHUNK,),
        cparams={"codec": blosc2.Codec.ZSTD, "clevel": 1},
        urlpath=str(path),
    )
    for where, items in _values(nchunks):
        array[where] = items
