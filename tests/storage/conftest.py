"""Stores that hold the same object, each in its own way."""

from __future__ import annotations

import uuid
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec
import pytest

from b2nd_dask.storage import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.servers import HttpServer, S3Server

KINDS = ["local", "bytes", "window", "memory", "http", "s3", "zip", "simplecache"]
SPARSE_KINDS = ["local-sparse", "memory-sparse", "http-sparse", "s3-sparse", "zip-sparse"]
PREFIX = b"bytes in front of the frame"


@dataclass(frozen=True)
class Store:
    """One kind of store; the files given to `put` replace those of an earlier call."""

    kind: str
    put_files: Callable[[Mapping[str, bytes]], None]
    location: Location
    missing: Location | None
    """Where nothing is; None where that cannot be."""

    @property
    def is_sparse(self) -> bool:
        return self.kind.endswith("-sparse")

    def put(self, data: bytes, **members: bytes) -> Location:
        if self.kind == "bytes":
            return Location.of(data)
        if self.kind == "window":
            self.put_files({"": PREFIX + data})
        elif self.is_sparse:
            self.put_files({"chunks.b2frame": data, **members})
        else:
            self.put_files({"": data})
        return self.location


@pytest.fixture(params=KINDS + SPARSE_KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, request, tmp_path)


@pytest.fixture(params=SPARSE_KINDS)
def sparse_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, request, tmp_path)


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = uuid.uuid4().hex
    scheme = kind.removesuffix("-sparse")
    if scheme in ("local", "bytes", "window"):
        path = tmp_path / name
        offset = len(PREFIX) if scheme == "window" else 0
        missing = None if scheme == "bytes" else Location.of(tmp_path / "no such file")
        return Store(
            kind, lambda files: _put_local(path, files), Location.of(path, offset=offset), missing
        )
    if scheme == "zip":
        archive = tmp_path / "archive.zip"
        _put_zip(archive, "other", {"": b""})
        return Store(
            kind,
            lambda files: _put_zip(archive, name, files),
            Location.of(f"zip://{name}::{archive}"),
            Location.of(f"zip://nothing::{archive}"),
        )
    if scheme in ("memory", "simplecache"):
        memory = fsspec.filesystem("memory")
        chain = "simplecache::" if scheme == "simplecache" else ""
        return Store(
            kind,
            lambda files: memory.pipe({_join(f"/{name}", key): files[key] for key in files}),
            Location.of(f"{chain}memory://{name}"),
            Location.of(f"{chain}memory://{name}-nothing"),
        )
    server: HttpServer | S3Server = request.getfixturevalue(f"{scheme}_server")
    options = getattr(server, "storage_options", None)

    def put_files(files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            server.put(_join(name, key), data)

    return Store(
        kind,
        put_files,
        Location.of(f"{server.url}/{name}", storage_options=options),
        Location.of(f"{server.url}/{name}-nothing", storage_options=options),
    )


def _join(name: str, member: str) -> str:
    return f"{name}/{member}" if member else name


def _put_local(path: Path, files: Mapping[str, bytes]) -> None:
    for member, data in files.items():
        target = path / member if member else path
        target.parent.mkdir(exist_ok=True)
        staged = target.with_name(target.name + ".staged")
        staged.write_bytes(data)
        staged.rename(target)


def _put_zip(archive: Path, name: str, files: Mapping[str, bytes]) -> None:
    staged = archive.with_suffix(".staged")
    with zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as zipped:
        for member, data in files.items():
            zipped.writestr(_join(name, member), data)
    staged.rename(archive)
