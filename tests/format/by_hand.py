"""Frames of python-blosc2, and their parts found by `struct` alone."""

from __future__ import annotations

import itertools
import struct
from typing import Any, NamedTuple

import blosc2
import numpy as np


class Parts(NamedTuple):
    head: bytes
    data: bytes
    index: bytes
    trailer: bytes


def parts_of(raw: bytes) -> Parts:
    """Cut a contiguous frame into its parts."""
    (header_len,) = struct.unpack_from(">i", raw, 11)
    (frame_len,) = struct.unpack_from(">Q", raw, 16)
    (cbytes,) = struct.unpack_from(">q", raw, 39)
    (trailer_len,) = struct.unpack_from(">I", raw, frame_len - 22)
    edges = (header_len, header_len + cbytes, frame_len - trailer_len, frame_len)
    return Parts(raw[: edges[0]], *(raw[a:b] for a, b in itertools.pairwise(edges)))


def frame_bytes(values: Any, **kwargs: Any) -> bytes:
    """What python-blosc2 writes for an array."""
    return bytes(blosc2.asarray(np.asarray(values), **kwargs).to_cframe())


def changed(raw: bytes, at: int, new: bytes | int) -> bytes:
    """A copy with some bytes replaced."""
    new = bytes([new]) if isinstance(new, int) else new
    return raw[:at] + new + raw[at + len(new) :]
