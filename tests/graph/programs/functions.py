"""Functions that programs give to dask: of blocks, of lists of blocks, steps of reductions.

Those whose names begin with ``in_place`` write into what they are given. Over arrays in memory they
get copies: there a block is a view of the array itself.
"""

from __future__ import annotations

import types
from functools import partial, wraps
from typing import Any

import dask
import numpy as np


def plus_one(block):
    return block + 1


def doubled_sorted(block):
    return np.sort(block * 2, axis=-1)


def same(block):
    return block


def reversed_rows(block):
    return block[::-1]


def row_sums(block):
    return block.sum(axis=-1)


def stacked_twice(block):
    return np.stack([block, block], axis=0)


def with_location(block, block_info=None):
    return block + (sum(block_info[0]["chunk-location"]) if block_info else 0)


def with_number(block, block_id=None):
    return block + sum(block_id or ())


def with_place(block, block_info=None):
    """Tells where a block begins, of how many, and the shape that dask expects."""
    if not block_info or "array-location" not in block_info[0]:
        return block
    given, made = block_info[0], block_info[None]
    starts = [start for start, _ in given["array-location"]]
    number = sum(starts) + sum(given["num-chunks"]) + sum(made["chunk-shape"])
    return (block + number).astype(block.dtype)


def with_both_places(block, other, block_info=None):
    """Tells where each of two blocks is."""
    if not block_info or "chunk-location" not in block_info[0]:
        return block
    numbers = [sum(block_info[i]["chunk-location"]) * (i + 1) for i in (0, 1)]
    return (block + (sum(numbers) + sum(other.shape))).astype(block.dtype)


def doubled(value):
    return value * 2


def plus_sum_of(block, other):
    """All elements of the other count, in an order that nothing depends on."""
    return (block + np.asarray(other).sum()).astype(block.dtype)


def sum_with_rows_of(other, block):
    return plus_sum_of(block, other)


def transposed(block):
    return block.T


def plus_transposed(block, other):
    return block + other.T


def stacked_last(block):
    return np.stack([block, block], axis=-1)


def column_sums(block):
    return block.sum(axis=0)


def repeated_rows(block):
    return np.repeat(block, 2, axis=0)


def first_rows(block):
    return block[:1]


def dot_of_blocks(block, other):
    return block @ other


def dot_of_lists(blocks, others):
    return sum(block @ other for block, other in zip(_flat(blocks), _flat(others), strict=True))


def whole_blocks(x):
    """The part of an array whose blocks are as large as its first one.

    Without axes dask gives the name of a block for the block.
    """
    if not x.ndim:
        raise ValueError("an array of one block")
    return x[tuple(slice(sum(n == sizes[0] for n in sizes) * sizes[0]) for sizes in x.chunks)]


def square(x):
    """A part of two axes, in square blocks."""
    x = x[(0,) * (x.ndim - 2)]
    n = min(x.shape)
    return x[:n, :n].rechunk(min(n, x.chunks[1][0]))


def reassembled(x, da, **options):
    """The blocks of an array as Delayed values, put together again."""
    blocks = x.to_delayed(**options)
    parts = np.empty(blocks.shape, object)
    for place in np.ndindex(blocks.shape):
        shape = tuple(sizes[i] for sizes, i in zip(x.chunks, place, strict=True))
        parts[place] = da.from_delayed(blocks[place], shape, x.dtype)
    return da.block(parts.tolist())


def stored(x, da):
    """An array that was written into one in memory."""
    target = np.zeros(x.shape, x.dtype)
    da.store(x, target, scheduler="sync")
    return da.from_array(target, chunks=x.chunks)


def stored_again(x, da):
    """What `store` gives of an array that it has written."""
    target = np.zeros(x.shape, x.dtype)
    found = da.store(x, target, return_stored=True, scheduler="sync")
    return found[0] if isinstance(found, tuple | list) else found


def stored_later(x, da):
    """The same, by a Delayed, into a part of a larger array."""
    target = np.zeros([n + 2 for n in x.shape], x.dtype)
    region = tuple(slice(1, n + 1) for n in x.shape)
    dask.compute(da.store(x, target, regions=region, compute=False), scheduler="sync")
    return da.from_array(target[region], chunks=x.chunks)


def neighbours(block):
    return block + np.roll(block, 1, axis=0)


def array_type(block):
    """Tells a subclass, and a scalar that should be an array.

    NumPy's functions make scalars of arrays without axes: which of them a block is nobody promises.
    """
    block = np.asarray(block) if isinstance(block, np.generic) else block
    return np.full(block.shape, 1 + isinstance(block, np.ndarray) + (type(block) is np.ndarray))


def masked_zeros(block):
    return np.ma.masked_equal(block, 0)


def in_place_plus_one(block):
    block += 1
    return block


def in_place_cleared(block):
    block[..., block.shape[-1] // 2 :] = 0
    np.multiply(block, 2, out=block)
    return block


def in_place_sorted(block):
    block.sort(axis=-1)
    return block


def in_place_flat(block):
    block.flat[::2] = 3
    return block + block


def _flat(blocks):
    return [b for inner in blocks for b in _flat(inner)] if isinstance(blocks, list) else [blocks]


def sum_of_blocks(blocks):
    return sum(np.asarray(block * 1).sum(-1) for block in _flat(blocks))


def first_of_blocks(blocks):
    return _flat(blocks)[0][..., 0]


def widths_of_blocks(blocks):
    return blocks[0][..., 0] * 0 + sum(block.shape[-1] for block in blocks)


def in_place_sum_of_blocks(blocks):
    first = _flat(blocks)[0]
    first[..., :1] += 1
    for block in _flat(blocks)[1:]:
        first[..., :1] += block[..., -1:]
    return first[..., 0]


def blocks_and_sum(block, other, number):
    return block + other * number


def total(x, axis=None, keepdims=False):
    return np.sum(x, axis=axis, keepdims=keepdims)


def greatest(x, axis=None, keepdims=False):
    return np.max(x, axis=axis, keepdims=keepdims)


def in_place_total(x, axis=None, keepdims=False):
    x *= 2
    return np.sum(x, axis=axis, keepdims=keepdims)


def in_place_greatest(x, axis=None, keepdims=False):
    x[...] = abs(x)
    return np.max(x, axis=axis, keepdims=keepdims)


def total_and_count(x, axis=None, keepdims=False):
    return {"total": np.sum(x, axis=axis, keepdims=True), "n": np.ones_like(x).sum(axis, keepdims=True)}  # fmt: skip  # noqa: E501


def totals_combined(parts, axis=None, keepdims=False):
    return {name: sum(p[name].sum(axis, keepdims=True) for p in _flat(parts)) for name in ("total", "n")}  # fmt: skip  # noqa: E501


def mean_of_totals(parts, axis=None, keepdims=False):
    found = totals_combined(parts, axis)
    mean = found["total"] - found["n"]
    return (
        mean if keepdims else mean.reshape([n for i, n in enumerate(mean.shape) if i not in axis])
    )


def _copied(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_copied(part) for part in argument]
    if not isinstance(argument, np.ndarray):
        return argument
    copy = argument.copy()
    copy.flags.writeable = argument.flags.writeable
    return copy


def _on_copies(function, *args, **kwargs):
    return function(*map(_copied, args), **kwargs)


def functions(*, in_memory: bool) -> types.SimpleNamespace:
    """All of them, as programs over frames or over arrays in memory call them."""
    own = {name: f for name, f in globals().items() if isinstance(f, types.FunctionType)}
    own = {name: f for name, f in own.items() if f.__module__ == __name__ and name[0] != "_"}
    if in_memory:
        for name in [name for name in own if name.startswith("in_place")]:
            own[name] = wraps(own[name])(partial(_on_copies, own[name]))
    return types.SimpleNamespace(**own)
