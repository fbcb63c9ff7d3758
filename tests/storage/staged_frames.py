"""Frames written through a staging, without dask."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from b2nd_dask.storage import Location, StagedChunks, staging_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from b2nd_dask.storage.write.object_staging import BaseObjectStaging

HEAD, TAIL = b"H" * 300, b"T" * 700


def incompressible(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def make(location: Location, *, sparse: bool = False, replace: bool = False) -> BaseObjectStaging:
    return staging_for(location, sparse=sparse, replace=replace, header_len=len(HEAD))


def publish(staging: BaseObjectStaging, objects: Sequence[Sequence[bytes]]) -> bytes:
    """Write chunks, those of one object together; gives the bytes that must come out."""
    staging.prepare()
    runs = [run for chunks in objects for run in staging.append(chunks)]
    names = tuple(dict.fromkeys(run.part for run in runs))
    placement = staging.join(
        StagedChunks(
            names,
            np.array([names.index(run.part) for run in runs], np.int64),
            np.array([run.start for run in runs], np.int64),
            np.array([run.stop - run.start for run in runs], np.int64),
        )
    )
    data = bytearray(placement.data_nbytes)
    flat = [chunk for chunks in objects for chunk in chunks]
    for position, chunk in zip(placement.positions.tolist(), flat, strict=True):
        data[position : position + len(chunk)] = chunk
    staging.publish(placement, HEAD, TAIL)
    staging.discard()
    return HEAD + bytes(data) + TAIL
