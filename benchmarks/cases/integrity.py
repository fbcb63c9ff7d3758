"""`integrity`: what checksums cost a sum and a write; checking a whole file against reading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import dense, peers, writers
from benchmarks.arrays import ArrayData
from benchmarks.compression import COMPRESSIONS, Compression
from benchmarks.model import Case, Contender, Dataset, Paths, Run, Scenario
from benchmarks.targets import times_as_long_as

UNCHECKED = "sum, verify=False"
READ = "open_b2nd(verify=False)[...]"
WITHOUT = "to_b2nd, its checksums taken out"


def scenarios(quick: bool) -> list[Scenario]:
    count = dense.nchunks(quick)
    makers = (_sum, _verify, _write)
    return [make(how, count) for how in COMPRESSIONS for make in makers]


CASE = Case("integrity", "checksums of a dense float64 array", scenarios)


def _sum(how: Compression, nchunks: int) -> Scenario:
    return Scenario(
        name=f"sum-{how.name}",
        title=dense.title(how, nchunks),
        datasets=_sealed(how, nchunks),
        contenders=(
            _dask_sum(UNCHECKED, verify=False, is_ours=False),
            _dask_sum("sum, verify='auto'", verify="auto"),
            _dask_sum("sum, verify=True", verify=True),
        ),
        targets=(times_as_long_as(UNCHECKED, 1.1),),
        rtol=1e-12,
    )


def _verify(how: Compression, nchunks: int) -> Scenario:
    return Scenario(
        name=f"verify-{how.name}",
        title=dense.title(how, nchunks),
        datasets=_sealed(how, nchunks),
        contenders=(
            Contender(READ, _prepare_read),
            Contender("verify", _prepare_verify, is_ours=True),
        ),
        targets=(times_as_long_as(READ, 1.0),),
    )


def _write(how: Compression, nchunks: int) -> Scenario:
    array = dense.array(how, nchunks)
    return Scenario(
        name=f"write-{how.name}",
        title=f"{dense.title(how, nchunks)}; {writers.how_synced(False)}",
        datasets=(),
        contenders=(
            _to_b2nd(WITHOUT, array, checksums=False),
            _to_b2nd("to_b2nd", array, checksums=True),
        ),
        targets=(times_as_long_as(WITHOUT, 1.05),),
        observe=partial(writers.require_equal, array.pieces),
        writes=True,
    )


def _sealed(how: Compression, nchunks: int) -> tuple[Dataset]:
    recipe = {"data": "dense", "seed": dense.SEED, "how": how.name, "nchunks": nchunks}
    return (Dataset("sealed", "sealed.b2nd", recipe, partial(_write_sealed, how, nchunks)),)


def _write_sealed(how: Compression, nchunks: int, path: Path) -> None:
    from b2nd_dask import to_b2nd

    array = dense.in_memory(nchunks)
    to_b2nd(
        array, path, chunks=dense.CHUNK, blocks=dense.BLOCK, cparams=how.blosc2_params(), mode="w"
    )


def _dask_sum(name: str, *, verify: Any, is_ours: bool = True) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        from b2nd_dask import from_b2nd

        peers.use_dask_threads(threads)
        path = paths["sealed"]
        return lambda: float(from_b2nd(path, verify=verify).sum().compute())

    return Contender(name, prepare, is_ours=is_ours)


def _prepare_read(paths: Paths, threads: int) -> Run:
    from b2nd_dask import open_b2nd

    return lambda: open_b2nd(paths["sealed"], verify=False, threads=threads)[...].size


def _prepare_verify(paths: Paths, threads: int) -> Run:
    from b2nd_dask import verify

    def run() -> int:
        found = verify(paths["sealed"], threads=threads)
        return found.nchunks * dense.CHUNK if found.ok else 0

    return run


def _to_b2nd(name: str, array: ArrayData, *, checksums: bool) -> Contender:
    def source(paths: Paths, threads: int) -> Callable[[], Any]:
        from b2nd_dask.frame.write import writer

        if not checksums:
            writer.chunk_digest = lambda chunk: 0
        return writers.from_memory(array, paths, threads)

    # waiting for the disk would hide the difference
    ours = writers.b2nd_dask(source, array, synced=False, name=name)
    return replace(ours, is_ours=checksums)
