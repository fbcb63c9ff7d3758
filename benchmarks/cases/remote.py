"""`remote`: opening, parts, sums, all and writing, on a web server and on an object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks import grids, observing, peers_remote
from benchmarks.arrays import ArrayData
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Scenario
from benchmarks.peers import Work
from benchmarks.peers_remote import Server
from benchmarks.targets import counted_at_most

#: Seconds that each answer waits: near, the same continent, another one.
NEAR, FAR, FARTHEST = 0.001, 0.03, 0.1
#: Requests that an open may take.
OPENING = 2


@dataclass(frozen=True)
class _Job:
    name: str
    what: str
    work: Work
    """On an array of NumPy's kind."""
    lazily: Work
    """The same on a dask array."""


def _part(name: str, *index: Any) -> _Job:
    shown = ", ".join(_shown(part) for part in index)
    return _Job(name, f"`x[{shown}]`", lambda x: x[index], lambda x: x[index].compute())


def _shown(part: Any) -> str:
    return f"{part.start or ''}:{part.stop or ''}" if isinstance(part, slice) else str(part)


_OPENING = _Job("opening", "opening alone", lambda x: list(x.shape), lambda x: list(x.shape))
_SUM = _Job("sum", "sum", lambda x: float(x[...].sum()), lambda x: float(x.sum().compute()))
_ALL = _Job("all", "all of the array", lambda x: x[...], lambda x: x.compute())
_WINDOW = _part("window", slice(3000, 5000), slice(3000, 5000))
_HTTP = (
    _OPENING,
    _part("rows", slice(4000, 4100)),
    _part("column", slice(None), 4000),
    _WINDOW,
    _SUM,
    _ALL,
)
#: moto reads an object as a whole for each range of it: a small array in large chunks.
_S3 = (_OPENING, _part("plane", 201), _ALL)


def scenarios(quick: bool) -> list[Scenario]:
    tiles, volume = grids.tiles(quick), grids.volume(ZSTD, quick=True)
    http = [_reading(Server("http", FAR), tiles, job) for job in _HTTP]
    other = [
        _reading(Server("http", latency), tiles, job)
        for latency in (NEAR, FARTHEST)
        for job in (_WINDOW, _SUM)
    ]
    s3 = [_reading(Server("s3", FAR), volume, job) for job in _S3]
    return [*http, *other, *s3, _writing(Server("s3", FAR), volume)]


CASE = Case("remote", "open, read and write on servers with a latency", scenarios)


def _reading(server: Server, array: ArrayData, job: _Job) -> Scenario:
    return Scenario(
        name=f"{server.name} {job.name}",
        title=f"{array.title()}; {server.title}; opening and {job.what}",
        datasets=(array.b2nd, array.zarr, *_icechunks(server, array)),
        contenders=_readers(server, job),
        targets=(counted_at_most("requests", OPENING),) if job is _OPENING else (),
        observe=observing.digest if job.name not in ("sum", "opening") else _as_it_is,
        rtol=1e-4,
    )


def _as_it_is(result: Any) -> Any:
    return result


def _icechunks(server: Server, array: ArrayData) -> list[Any]:
    return [array.icechunk] if server.kind == "http" else []


def _readers(server: Server, job: _Job) -> tuple[Contender, ...]:
    found = [
        peers_remote.open_b2nd(server, job.work),
        peers_remote.b2nd_dask(server, job.lazily),
        peers_remote.b2nd_dask(server, job.lazily, chunks="auto"),
        peers_remote.zarr_alone(server, job.work),
        peers_remote.dask_from_zarr(server, job.lazily),
        peers_remote.zarr_alone(server, job.work, by_obstore=True),
        peers_remote.dask_from_zarr(server, job.lazily, by_obstore=True),
        peers_remote.tensorstore_alone(server, _of_tensorstore(job)),
    ]
    if server.kind == "http":
        found.append(peers_remote.icechunk(server, job.work))
    return tuple(found)


def _of_tensorstore(job: _Job) -> Work:
    return lambda store: job.work(_Read(store))


class _Read:
    """A `TensorStore` whose views are read at once."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.shape = store.shape

    def __getitem__(self, index: Any) -> Any:
        return self._store[index].read().result()


def _writing(server: Server, array: ArrayData) -> Scenario:
    return Scenario(
        name=f"{server.name} writing",
        title=f"{array.title()}; {server.title}; a dask array in memory is written",
        datasets=(array.b2nd,),
        contenders=(
            peers_remote.to_b2nd(server, array),
            peers_remote.to_zarr(server, array),
            peers_remote.to_zarr(server, array, by_obstore=True),
        ),
        targets=(),
        observe=lambda read: observing.digest(read()),
    )
