"""Frames written through a staging, without dask."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.storage import Location, Run, staging_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from b2nd_dask.storage.write.object_staging import BaseObjectStaging
    from b2nd_dask.storage.write.object_store import StagingArea

_ROW = [("part", "i8"), ("start", "i8"), ("nbytes", "i8")]
HEAD, TAIL = b"H" * 300, b"T" * 700


def incompressible(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def make(location: Location, *, sparse: bool = False, replace: bool = False) -> BaseObjectStaging:
    return staging_for(location, sparse=sparse, replace=replace, header_len=len(HEAD))


def put(area: StagingArea, name: str, data: bytes) -> str:
    """Stage an object; gives its path."""
    area.stage(name, data)
    return area.place(name)


def staged_at(runs: Sequence[Run]) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Chunks that are staged there."""
    names = tuple(dict.fromkeys(run.part for run in runs))
    rows = [(names.index(run.part), run.start, run.stop - run.start) for run in runs]
    return names, np.array(rows, _ROW)


def publish(staging: BaseObjectStaging, objects: Sequence[Sequence[bytes]]) -> bytes:
    """Write chunks, those of one object together; gives the bytes that must come out."""
    staging.prepare()
    runs = [run for chunks in objects for run in staging.append(chunks)]
    placement = staging.join(*staged_at(runs))
    data = bytearray(placement.data_nbytes)
    flat = [chunk for chunks in objects for chunk in chunks]
    for position, chunk in zip(placement.positions.tolist(), flat, strict=True):
        data[position : position + len(chunk)] = chunk
    staging.publish(placement, HEAD, TAIL)
    staging.discard()
    return HEAD + bytes(data) + TAIL
