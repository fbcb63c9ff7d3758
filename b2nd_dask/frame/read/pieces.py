"""A region chunk by chunk, without an array of all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.constant import read_only
from b2nd_dask.frame.open.opening import OpenedFrame, located
from b2nd_dask.frame.read.buffers import Scratch
from b2nd_dask.frame.read.decode import constant_in, decode_raw
from b2nd_dask.frame.read.fetch import ChunkBytes, ChunkRequest, batches, fetch
from b2nd_dask.frame.read.fill import Fill
from b2nd_dask.frame.read.plan import Part, touched_blocks
from b2nd_dask.frame.read.scatter import scatter_chunk

_stored_order = Scratch()
_array_order = Scratch()


class ChunkItems(NamedTuple):
    """The selected elements of one chunk."""

    part: Part
    elements: NDArray[Any]
    """Read-only, and valid until the next ones are asked for; 0-d where the chunk repeats one."""


def iter_chunks(
    opened: OpenedFrame, parts: Sequence[Part], fill: Fill, *, in_order: bool
) -> Iterator[ChunkItems]:
    """Decode stored chunks one after the other, through memory that is used again.

    Parameters
    ----------
    opened : OpenedFrame
    parts : sequence of Part
        Of stored chunks.
    fill : Fill
        Its dtype is that of the elements; not a structured one.
    in_order : bool
        False where neither the order nor the shape of the elements matters, only the number of
        axes.

    Yields
    ------
    ChunkItems

    Raises
    ------
    CorruptChunkError, UnsupportedFrameError, UninitializedChunkError
        With the chunk's number.
    """
    requests = [
        ChunkRequest(part.chunk, touched_blocks(part.inner, opened.parsed.grid)) for part in parts
    ]
    for batch in batches(opened, requests, opened.reader.batch_nbytes):
        for fetched in fetch(opened, batch):
            part = parts[fetched.number]
            with _decoded(opened, fetched, part.inner, fill, in_order=in_order) as elements:
                yield ChunkItems(part, read_only(elements))


@contextmanager
def _decoded(
    opened: OpenedFrame,
    fetched: ChunkBytes,
    inner: tuple[range, ...],
    fill: Fill,
    *,
    in_order: bool,
) -> Iterator[NDArray[Any]]:
    frame, chunk = opened.parsed, fetched.chunk
    with located(opened, chunk):
        element = constant_in(fetched, fill)
    if element is not None:
        yield element
        return
    with _stored_order.lent(fetched.header.nbytes) as buffer:
        raw = buffer.view(fill.dtype)
        with located(opened, chunk):
            decode_raw(frame, fetched, raw)
        grid = frame.grid
        whole = not fetched.some_blocks
        if whole and not in_order and tuple(map(len, inner)) == grid.padded_chunk:
            yield raw.reshape((-1,) + (1,) * (grid.ndim - 1))
        elif whole and grid.chunk_is_c_order:
            yield raw.reshape(grid.padded_chunk)[
                tuple(slice(r.start, r.stop, r.step) for r in inner)
            ]
        else:
            count = int(np.prod([len(r) for r in inner]))
            with _array_order.lent(count * grid.itemsize) as other:
                elements = other.view(fill.dtype).reshape([len(r) for r in inner])
                scatter_chunk(raw, grid, inner, elements, some_blocks=fetched.some_blocks)
                yield elements
