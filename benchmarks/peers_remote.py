"""Ways to read from a server, each contender with a server of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import peers, peers_tensorstore, servers
from benchmarks.arrays import B2ND, ZARR
from benchmarks.model import Contender, Counted, Paths, Run
from benchmarks.peers import Work
from benchmarks.servers import Kind, Server

NEEDS: Mapping[Kind, tuple[str, ...]] = {"http": ("aiohttp",), "s3": ("s3fs", "moto")}


@dataclass(frozen=True)
class Place:
    """Where a contender finds the data."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    kvstore: Mapping[str, Any] = field(default_factory=dict)
    """The same in tensorstore's words."""


def b2nd_dask(kind: Kind, work: Work, *, chunks: Any = None) -> Contender:
    def make(place: Place, threads: int) -> Run:
        from b2nd_dask import from_b2nd

        peers.use_dask_threads(threads)
        options = {"storage_options": place.storage_options, "chunks": chunks}
        return lambda: work(from_b2nd(place.url, **options))

    return _contender(peers.OURS_AUTO if chunks else peers.OURS, kind, B2ND, make)


def open_b2nd(kind: Kind, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        from b2nd_dask import open_b2nd

        options = place.storage_options
        return lambda: work(open_b2nd(place.url, storage_options=options, threads=threads))

    return _contender(peers.OPEN_B2ND, kind, B2ND, make)


def zarr_alone(kind: Kind, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        opened = _zarr_opener(place)
        return lambda: work(opened())

    return _contender(peers.ZARR_ALONE, kind, ZARR, make)


def dask_from_zarr(kind: Kind, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        import dask.array as da

        peers.use_dask_threads(threads)
        opened = _zarr_opener(place)
        return lambda: work(da.from_zarr(opened()))

    return _contender(peers.FROM_ZARR, kind, ZARR, make)


def tensorstore_alone(kind: Kind, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        if kind == "s3":
            os.environ |= {
                "AWS_ACCESS_KEY_ID": servers.KEY,
                "AWS_SECRET_ACCESS_KEY": servers.SECRET,
            }
        opened = peers_tensorstore.opener(dict(place.kvstore), threads)
        return lambda: work(opened())

    needs = peers_tensorstore.NEEDS
    return _contender(peers_tensorstore.TENSORSTORE, kind, ZARR, make, needs)


def _contender(
    name: str,
    kind: Kind,
    dataset: str,
    make: Callable[[Place, int], Run],
    needs: tuple[str, ...] = (),
) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        path = paths[dataset]
        server = Server.start(kind, path.parent)
        run = make(_place(kind, server.endpoint, path.name), threads)

        def counted() -> Counted:
            return Counted(run(), server.requests)

        return counted

    is_ours = dataset == B2ND
    return Contender(name, prepare, is_ours, (*NEEDS[kind], *needs))


def _place(kind: Kind, endpoint: str, name: str) -> Place:
    if kind == "http":
        kvstore = {"driver": "http", "base_url": endpoint, "path": f"/{name}/"}
        return Place(f"{endpoint}/{name}", {}, kvstore)
    options = {
        "key": servers.KEY,
        "secret": servers.SECRET,
        "client_kwargs": {"endpoint_url": endpoint, "region_name": servers.REGION},
    }
    kvstore = {
        "driver": "s3",
        "bucket": servers.BUCKET,
        "path": f"{name}/",
        "endpoint": endpoint,
        "aws_region": servers.REGION,
        "aws_credentials": {"type": "environment"},
    }
    return Place(f"s3://{servers.BUCKET}/{name}", options, kvstore)


def _zarr_opener(place: Place) -> Callable[[], Any]:
    """With zarr's own concurrency, which is meant for latency; it need not look for version 2."""
    import zarr

    options = dict(place.storage_options) or None
    return lambda: zarr.open_array(place.url, mode="r", zarr_format=3, storage_options=options)
