"""Frames of all kinds of chunks, and the arrays that they hold."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np

from b2nd_dask import add_stats

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

#: A constant, or the seed of random elements.
Content = tuple[str, Any]

DTYPES = {
    "i4": 8,
    "f8": 10,
    "f4": 6,
    "u1": 6,
    "?": 6,
    ">f8": 4,
    "c16": 4,
    "f2": 4,
    "c8": 3,
    "i8": 4,
    ">i4": 2,
    "u2": 2,
    "i1": 2,
    "u8": 2,
    ">c16": 1,
    "M8[s]": 1,
    "m8[ms]": 1,
    "U2": 1,
    "S3": 1,
    "i4,>f8": 1,
    "V3": 0.3,
}
LONGEST_AXIS = {0: 0, 1: 40, 2: 16, 3: 9, 4: 5}
#: Elements that floats may have beside small whole numbers.
EXTREMES = (np.nan, np.inf, -np.inf, -0.0)


@dataclass(frozen=True)
class Source:
    """A frame that python-blosc2 makes of one value, and assigns to."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    start: str = "zeros"
    """zeros, nans, uninit, or the value that all elements have."""
    writes: tuple[tuple[str, str], ...] = ()
    """Regions, and the value assigned to each: a number, or "seed N"."""
    contiguous: bool = True
    stats: bool = False
    """Whether it has statistics of its chunks."""

    def write(self, path: Path) -> None:
        """Write the frame."""
        options = {"chunks": self.chunks, "blocks": self.blocks, "contiguous": self.contiguous}
        options |= {"dtype": np.dtype(self.dtype), "urlpath": str(path)}
        if self.start in ("zeros", "nans", "uninit"):
            stored = getattr(blosc2, self.start)(self.shape, **options)
        else:
            stored = blosc2.full(self.shape, _value(self.start), **options)
        for region, what in self.writes:
            where = _region(region)
            stored[where] = _content(what, self.dtype, np.empty(self.shape, "V0")[where].shape)
        if self.stats:
            add_stats(path, threads=1)

    @functools.cache  # noqa: B019 - sources are few, and live as long as a program
    def array(self) -> np.ndarray:
        """What the frame holds, where chunks that were never written are zeros."""
        fill = {"zeros": 0, "uninit": 0, "nans": np.nan}.get(self.start)
        array = np.zeros(self.shape, self.dtype)
        if fill is None or fill != 0:
            array[...] = _value(self.start) if fill is None else fill
        for region, what in self.writes:
            where = _region(region)
            array[where] = _content(what, self.dtype, array[where].shape)
        return array


def _region(text: str) -> Any:
    return eval(f"np.s_[{text}]", {"np": np})


def _value(text: str) -> Any:
    return eval(text, {"nan": np.nan, "inf": np.inf})


def _content(what: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Elements: few small whole numbers, or one value."""
    kind, _, argument = what.partition(" ")
    if kind != "seed":
        return np.full(shape, _value(what)).astype(dtype)
    rng = np.random.default_rng(int(argument))
    low, high = [(-3, 4), (-3, 0), (1, 3), (0, 2)][int(argument) % 4]
    numbers = rng.integers(low, high, shape)
    if np.dtype(dtype).fields:
        return np.array([(abs(n), n / 2) for n in numbers.reshape(-1).tolist()], dtype).reshape(
            shape
        )
    if np.dtype(dtype).kind in "USV":
        size = np.dtype(dtype).itemsize // (4 if np.dtype(dtype).kind == "U" else 1)
        texts = np.array(["", "a", "b", "ab", "c"])[numbers % 5].astype(f"U{size}")
        return texts.astype(f"S{size}").astype(dtype) if dtype[0] == "V" else texts.astype(dtype)
    if np.dtype(dtype).kind == "u":
        numbers = abs(numbers)
    elements = np.asarray(numbers).astype(dtype)
    if elements.dtype.kind == "c":
        elements += (1j * rng.integers(low, high, shape)).astype(dtype)
    if elements.dtype.kind in "fc" and int(argument) % 3 == 0:
        extreme = EXTREMES[int(argument) // 3 % 4]
        elements = np.where(rng.random(shape) < 0.1, extreme, elements).astype(dtype)
    return elements


def draw_source(rng: Random) -> Source:
    """Draw a frame of few small chunks."""
    dtype = rng.choices(list(DTYPES), list(DTYPES.values()))[0]
    ndim = rng.choices(range(5), (0.6, 7, 12, 6, 2))[0]
    shape = tuple(
        0 if rng.random() < 0.02 else rng.randint(1, LONGEST_AXIS[ndim]) for _ in range(ndim)
    )
    most = {1: 10, 2: 5, 3: 3, 4: 2}.get(ndim, 1)
    chunks = tuple(
        n + 1 if rng.random() < 0.1 else -(-max(n, 1) // rng.randint(1, most)) for n in shape
    )
    blocks = tuple(rng.randint(max(1, -(-n // 3)), n) for n in chunks)
    kind = np.dtype(dtype).kind
    start = rng.choice(["zeros", "zeros", "uninit"])
    if kind in "biufc":
        start = rng.choice([start, start, "1", "nans" if kind == "f" else "1"])
    if start == "nans" and dtype not in ("f4", "f8"):
        start = "nan"
    writes = [_draw_write(rng, shape, chunks, kind, start) for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.6:
        writes.insert(0, ("...", f"seed {rng.randint(0, 99)}"))
    return Source(
        dtype, shape, chunks, blocks, start, tuple(writes) if ndim > 0 and math.prod(shape) else (),
        contiguous=rng.random() < 0.8, stats=kind in "biuf" and rng.random() < 0.3,
    )  # fmt: skip


def _draw_write(
    rng: Random, shape: tuple[int, ...], chunks: tuple[int, ...], kind: str, start: str
) -> tuple[str, str]:
    """A box of whole chunks (of a few if all elements are known), and its value."""
    parts = []
    whole = start == "uninit" or rng.random() < 0.7
    for n, chunk in zip(shape, chunks, strict=True):
        step = chunk if whole else 1
        first = rng.randrange(0, max(n, 1), step)
        last = rng.randrange(first, max(n, 1), step) + step
        parts.append(f"{first}:{min(last, n)}")
    values = {"b": ["True"], "i": ["-2"], "u": ["3"], "f": ["-2", "nan", "0.5", "inf"]}
    known = values.get(kind, ["2", "1.5j"] if kind == "c" else [])
    value = rng.choice([*known, f"seed {rng.randint(0, 99)}", f"seed {rng.randint(0, 99)}"])
    return ", ".join(parts) or "...", value
