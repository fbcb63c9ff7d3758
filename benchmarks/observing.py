"""Digests by which large results of contenders are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray


def digest(items: Any) -> NDArray[np.uint64]:
    """Shape, kind and every bit of an array, as a few integers."""
    array = np.ascontiguousarray(items)
    value = xxhash.xxh3_64_intdigest(array.view(np.uint8).reshape(-1))
    kind = [ord(char) for char in array.dtype.str]
    return np.array([*array.shape, *kind, value >> 32, value & 0xFFFFFFFF], np.uint64)


def graph_digest(graph: Mapping[Any, Any]) -> int:
    """A digest of the tasks of a graph, as an integer of 48 bits."""
    from dask.base import tokenize

    tokens = sorted(tokenize(key, task) for key, task in graph.items())
    return xxhash.xxh3_64_intdigest("".join(tokens).encode()) >> 16
