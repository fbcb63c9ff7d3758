"""Contenders that read from a server and write to it, each with its own server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import peers, peers_tensorstore, servers
from benchmarks.arrays import B2ND, ICECHUNK, ZARR, ArrayData
from benchmarks.model import Contender, Counted, Paths, Run
from benchmarks.peers import Work
from benchmarks.servers import Kind

NEEDS: Mapping[Kind, tuple[str, ...]] = {"http": ("aiohttp",), "s3": ("s3fs", "moto")}
BY_OBSTORE = " by obstore"


@dataclass(frozen=True)
class Server:
    """A kind of server, and its latency."""

    kind: Kind
    latency: float
    """Seconds before each response."""

    @property
    def name(self) -> str:
        """Name in scenarios."""
        return f"{self.kind} {self.latency * 1e3:g} ms"

    @property
    def title(self) -> str:
        """Description for readers."""
        server = "a web server" if self.kind == "http" else "an object store (moto)"
        return f"{server} that waits {self.latency * 1e3:g} ms before each answer"


@dataclass(frozen=True)
class Place:
    """The location of the data of a contender."""

    kind: Kind
    endpoint: str
    name: str

    @property
    def url(self) -> str:
        """For fsspec."""
        root = self.endpoint if self.kind == "http" else f"s3://{servers.BUCKET}"
        return f"{root}/{self.name}"

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """For fsspec."""
        if self.kind == "http":
            return {}
        client = {"endpoint_url": self.endpoint, "region_name": servers.REGION}
        return {"key": servers.KEY, "secret": servers.SECRET, "client_kwargs": client}

    @property
    def kvstore(self) -> dict[str, Any]:
        """The same for tensorstore."""
        if self.kind == "http":
            return {"driver": "http", "base_url": self.endpoint, "path": f"/{self.name}/"}
        return {
            "driver": "s3",
            "bucket": servers.BUCKET,
            "path": f"{self.name}/",
            "endpoint": self.endpoint,
            "aws_region": servers.REGION,
            "aws_credentials": {"type": "environment"},
        }

    def in_zarr(self, *, by_obstore: bool) -> tuple[Any, Mapping[str, Any] | None]:
        """Store and storage options for zarr."""
        if not by_obstore:
            return self.url, dict(self.storage_options) or None
        from obstore.store import HTTPStore, S3Store
        from zarr.storage import ObjectStore

        if self.kind == "http":
            plain = {"client_options": {"allow_http": True}}
            return ObjectStore(HTTPStore.from_url(self.url, **plain), read_only=True), None
        store = S3Store(
            servers.BUCKET,
            prefix=self.name,
            endpoint=self.endpoint,
            region=servers.REGION,
            access_key_id=servers.KEY,
            secret_access_key=servers.SECRET,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        return ObjectStore(store), None


def b2nd_dask(server: Server, work: Work, *, chunks: Any = None) -> Contender:
    def make(place: Place, threads: int) -> Run:
        from b2nd_dask import from_b2nd

        peers.use_dask_threads(threads)
        options = {"storage_options": place.storage_options, "chunks": chunks}
        return lambda: work(from_b2nd(place.url, **options))

    return _contender(peers.OURS_AUTO if chunks else peers.OURS, server, B2ND, make)


def open_b2nd(server: Server, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        from b2nd_dask import open_b2nd

        options = place.storage_options
        return lambda: work(open_b2nd(place.url, storage_options=options, threads=threads))

    return _contender(peers.OPEN_B2ND, server, B2ND, make)


def zarr_alone(server: Server, work: Work, *, by_obstore: bool = False) -> Contender:
    def make(place: Place, threads: int) -> Run:
        opened = _zarr_opener(place, by_obstore=by_obstore)
        return lambda: work(opened())

    return _of_zarr(peers.ZARR_ALONE, server, make, by_obstore=by_obstore)


def dask_from_zarr(server: Server, work: Work, *, by_obstore: bool = False) -> Contender:
    def make(place: Place, threads: int) -> Run:
        import dask.array as da

        peers.use_dask_threads(threads)
        opened = _zarr_opener(place, by_obstore=by_obstore)
        return lambda: work(da.from_zarr(opened()))

    return _of_zarr(peers.FROM_ZARR, server, make, by_obstore=by_obstore)


def tensorstore_alone(server: Server, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        if server.kind == "s3":
            os.environ |= {
                "AWS_ACCESS_KEY_ID": servers.KEY,
                "AWS_SECRET_ACCESS_KEY": servers.SECRET,
            }
        opened = peers_tensorstore.opener(place.kvstore, threads)
        return lambda: work(opened())

    needs = peers_tensorstore.NEEDS
    return _contender(peers_tensorstore.TENSORSTORE, server, ZARR, make, needs)


def icechunk(server: Server, work: Work) -> Contender:
    def make(place: Place, threads: int) -> Run:
        import icechunk
        import zarr

        def opened() -> Any:
            repository = icechunk.Repository.open(icechunk.http_storage(place.url))
            return zarr.open_array(repository.readonly_session("main").store, mode="r")

        return lambda: work(opened())

    return _contender("icechunk", server, ICECHUNK, make, ("icechunk",))


def to_b2nd(server: Server, array: ArrayData) -> Contender:
    def make(place: Place, threads: int) -> Run:
        from b2nd_dask import open_b2nd, to_b2nd

        made, number = _in_blocks(array, threads), itertools.count()
        params = array.how.blosc2_params()
        options = {"chunks": array.chunks, "blocks": array.blocks, "cparams": params}

        def run() -> Callable[[], Any]:
            url, given = f"{place.url}-{next(number)}", place.storage_options
            to_b2nd(made, url, storage_options=given, **options)
            return lambda: open_b2nd(url, storage_options=given)[...]

        return run

    return _contender(peers.OURS, server, B2ND, make)


def to_zarr(server: Server, array: ArrayData, *, by_obstore: bool = False) -> Contender:
    def make(place: Place, threads: int) -> Run:
        import dask.array as da
        import zarr

        made, number = _in_blocks(array, threads), itertools.count()
        codec = array.zarr_codec()

        def run() -> Callable[[], Any]:
            named = Place(place.kind, place.endpoint, f"{place.name}-{next(number)}.zarr")
            store, options = named.in_zarr(by_obstore=by_obstore)
            target = zarr.create_array(
                store, shape=array.shape, chunks=array.chunks, dtype=array.dtype,
                compressors=codec, storage_options=options,
            )  # fmt: skip
            da.store(made, target, lock=False)
            return lambda: target[...]

        return run

    return _of_zarr("da.to_zarr", server, make, by_obstore=by_obstore, dataset=B2ND)


def _in_blocks(array: ArrayData, threads: int) -> Any:
    import dask.array as da

    peers.use_dask_threads(threads)
    return da.from_array(array.in_memory(), chunks=array.chunks)


def _of_zarr(
    name: str,
    server: Server,
    make: Callable[[Place, int], Run],
    *,
    by_obstore: bool,
    dataset: str = ZARR,
) -> Contender:
    """A contender, by fsspec or by the library that zarr advises for stores."""
    needs = ("zarr", "obstore") if by_obstore else ("zarr",)
    return _contender(name + BY_OBSTORE * by_obstore, server, dataset, make, needs)


def _contender(
    name: str,
    server: Server,
    dataset: str,
    make: Callable[[Place, int], Run],
    needs: tuple[str, ...] = (),
) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        path = paths[dataset]
        started = servers.Server.start(server.kind, path.parent, server.latency)
        run = make(Place(server.kind, started.endpoint, path.name), threads)

        def counted() -> Counted:
            return Counted(run(), started.requests)

        return counted

    is_ours = name in (peers.OURS, peers.OURS_AUTO, peers.OPEN_B2ND)
    return Contender(name, prepare, is_ours, (*NEEDS[server.kind], *needs))


def _zarr_opener(place: Place, *, by_obstore: bool) -> Callable[[], Any]:
    """Open with zarr's own concurrency, meant for latency, without a search for version 2."""
    import zarr

    def opened() -> Any:
        store, options = place.in_zarr(by_obstore=by_obstore)
        return zarr.open_array(store, mode="r", zarr_format=3, storage_options=options)

    return opened
