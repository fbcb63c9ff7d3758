"""`remote`: opening, one plane and everything, from a web server and from an object store."""

from __future__ import annotations

import math
from typing import Any

from benchmarks import grids, observing, peers_remote
from benchmarks.arrays import ArrayData
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Scenario
from benchmarks.servers import LATENCY, Kind
from benchmarks.targets import counted_at_most

PLACE = 201
KINDS: tuple[Kind, ...] = ("http", "s3")
OPENING = 2


def scenarios(quick: bool) -> list[Scenario]:
    # small at all times: moto reads an object as a whole for each range of it
    array = grids.volume(ZSTD, quick=True)
    return [make(kind, array) for kind in KINDS for make in (_opening, _plane, _all)]


CASE = Case("remote", "open and read from servers with a latency", scenarios)


def _opening(kind: Kind, array: ArrayData) -> Scenario:
    return Scenario(
        name=f"{kind} opening",
        title=f"{_title(kind, array)}; opening alone",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            peers_remote.open_b2nd(kind, _shape),
            peers_remote.b2nd_dask(kind, _shape),
            peers_remote.zarr_alone(kind, _shape),
            peers_remote.dask_from_zarr(kind, _shape),
            peers_remote.tensorstore_alone(kind, _shape),
        ),
        targets=(counted_at_most("requests", OPENING),),
    )


def _plane(kind: Kind, array: ArrayData) -> Scenario:
    touched = (array.shape[1] // array.chunks[1]) * (array.shape[2] // array.chunks[2])
    blocks = (array.shape[1] // array.blocks[1]) * (array.shape[2] // array.blocks[2])
    return Scenario(
        name=f"{kind} plane",
        title=(
            f"{_title(kind, array)}; opening and `x[{PLACE}]`, which lies in {touched} chunks, "
            f"{blocks} blocks"
        ),
        datasets=(array.b2nd, array.zarr),
        contenders=(
            peers_remote.open_b2nd(kind, _read),
            peers_remote.b2nd_dask(kind, _computed),
            peers_remote.b2nd_dask(kind, _computed, chunks="auto"),
            peers_remote.zarr_alone(kind, _read),
            peers_remote.dask_from_zarr(kind, _computed),
            peers_remote.tensorstore_alone(kind, lambda store: store[PLACE].read().result()),
        ),
        # no request for each block
        targets=(counted_at_most("requests", blocks - 1),),
        observe=observing.digest,
    )


def _all(kind: Kind, array: ArrayData) -> Scenario:
    chunks = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
    return Scenario(
        name=f"{kind} all",
        title=f"{_title(kind, array)}; opening and all of the array",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            peers_remote.open_b2nd(kind, lambda frame: frame[...]),
            peers_remote.b2nd_dask(kind, lambda x: x.compute()),
            peers_remote.zarr_alone(kind, lambda stored: stored[...]),
            peers_remote.dask_from_zarr(kind, lambda x: x.compute()),
            peers_remote.tensorstore_alone(kind, lambda store: store.read().result()),
        ),
        # no request for each chunk, and two for opening
        targets=(counted_at_most("requests", OPENING + chunks),),
        observe=observing.digest,
    )


def _title(kind: Kind, array: ArrayData) -> str:
    server = "a web server" if kind == "http" else "an object store (moto)"
    return (
        f"{array.title()}; {server} that waits {LATENCY * 1e3:g} ms before each answer. "
        "python-blosc2 reads neither"
    )


def _shape(array: Any) -> list[int]:
    return list(array.shape)


def _read(array: Any) -> Any:
    return array[PLACE]


def _computed(array: Any) -> Any:
    return array[PLACE].compute()
