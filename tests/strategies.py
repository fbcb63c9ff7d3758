"""Hypothesis strategies: frames that python-blosc2 writes, selections and dask chunks.

A case describes one frame and can write it. All sizes are small, since only their relations matter:
axis to chunk, chunk to block, a short last block.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np
from blosc2 import Codec, Filter, SplitMode
from hypothesis import settings
from hypothesis import strategies as st

from tests.vectors import same

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Index = Any


def examples(number: int) -> settings:
    """Draw `number` examples if the profile has 50, and proportionally more in long runs."""
    return settings(max_examples=max(1, number * settings.default.max_examples // 50))


LONGEST_AXIS = {1: 300, 2: 24, 3: 11, 4: 6, 5: 4}
MOST_CHUNKS_ALONG = {1: 10, 2: 5, 3: 4, 4: 3, 5: 2}
LARGEST_BYTEDELTA_STRIDE = 127  # of the Python API

SIMPLE_DTYPES = [
    *("?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8"),
    *("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16"),
    *("<M8[ns]", "<M8[D]", ">M8[s]", "<M8[25s]", "<m8[ms]", ">m8[us]"),
    *("S1", "S5", "S300", "<U1", "<U3", ">U2", "<U70", "V1", "V7", "V300"),
]
FIELD_NAMES = ["a", "b", "x y", "naïve", "it's", 'quo"te']


@dataclass(frozen=True)
class Values:
    """The elements that a frame must have; undefined (never written) where `known` is False."""

    array: np.ndarray
    known: np.ndarray | None = None

    def assert_read(self, got: Any, index: Index = ...) -> None:
        """Assert that the bytes that were read equal a selection of these values."""
        want = self.array[index]
        if self.known is None:
            assert same(got, want)
        elif isinstance(want, np.ndarray):
            known = self.known[index]
            assert isinstance(got, np.ndarray)
            assert got.shape == want.shape
            assert same(got[known], want[known])
        else:
            assert type(got) is type(want)
            assert same(got, want) or not self.known[index]


# ---- dtypes and their values


@st.composite
def structured_dtypes(draw: st.DrawFn, depth: int = 2) -> np.dtype:
    """Draw a structured dtype; gaps of aligned ones are fields, as python-blosc2 stores them."""
    names = draw(st.lists(st.sampled_from(FIELD_NAMES), min_size=1, max_size=3, unique=True))
    simple = st.sampled_from(SIMPLE_DTYPES).map(np.dtype)
    inner = simple if depth == 1 else simple | structured_dtypes(depth=depth - 1)
    fields = [(name, draw(inner), draw(st.sampled_from([(), (2,), (2, 3)]))) for name in names]
    return np.dtype(np.dtype(fields, align=draw(st.booleans())).descr)


@lru_cache
def dtypes() -> st.SearchStrategy[np.dtype]:
    """Draw any dtype of fixed size; one in five is structured."""
    simple = st.sampled_from(SIMPLE_DTYPES).map(np.dtype)
    return st.integers(0, 4).flatmap(lambda n: structured_dtypes() if n == 4 else simple)


def noise(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Make valid elements from random bits: all NaNs, both zeros, NaT, any character."""
    if dtype.fields:
        items = np.zeros(count, dtype)
        for name in dtype.names:
            base, shape = dtype[name].subdtype or (dtype[name], ())
            field = noise(base, count * math.prod(shape), rng)
            items[name] = field.reshape(count, *shape)
        return items
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    if dtype.kind == "U":
        length = count * dtype.itemsize // 4
        codes = rng.integers(0, 0xD800, length).astype(f"{dtype.byteorder}u4")
        return codes.view(dtype)
    return np.frombuffer(bytearray(rng.bytes(count * dtype.itemsize)), dtype)


def items(dtype: np.dtype, shape: tuple[int, ...], style: str, seed: int) -> np.ndarray:
    """Make an array of one of four kinds of compressibility."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if style == "noise" or not count:
        return noise(dtype, count, rng).reshape(shape)
    if style == "few values":
        chosen = rng.integers(0, 4, count)
    elif style == "runs":
        chosen = np.arange(count) * 7 // count
    else:
        chosen = np.zeros(count, "i8")
    palette = noise(dtype, 8, rng)
    if style == "mostly zero":
        palette.view("u1").reshape(8, -1)[0] = 0
        chosen[rng.integers(0, count)] = 1
    return palette[chosen].reshape(shape)


STYLES = st.sampled_from(["noise", "few values", "runs", "constant", "mostly zero"])
SEEDS = st.integers(0, 2**32 - 1)


# ---- shapes and compression


@st.composite
def shapes(draw: st.DrawFn, shortest_axis: int = 0) -> tuple[int, ...]:
    """Draw a shape of 0 to 5 axes."""
    ndim = draw(st.sampled_from([1, 2, 3, 0, 4, 5]))
    return tuple(draw(st.integers(shortest_axis, LONGEST_AXIS[ndim])) for _ in range(ndim))


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw chunks, some longer than the axis, and blocks that fit in them, some unevenly."""
    most = MOST_CHUNKS_ALONG.get(len(shape), 1)

    def part(length: int, longest: int) -> int:
        return draw(st.integers(max(1, -(-length // most)), longest))

    chunks = tuple(part(length, max(length, 1) + 3) for length in shape)
    return chunks, tuple(part(length, length) for length in chunks)


def _pipelines(dtype: np.dtype) -> list[tuple[list[Filter], list[int]]]:
    """List the filters that suit a dtype, with their metas."""
    found = [
        ([], []),
        ([Filter.SHUFFLE], [0]),
        ([Filter.BITSHUFFLE], [0]),
        ([Filter.DELTA], [0]),
        ([Filter.DELTA, Filter.SHUFFLE], [0, 0]),
    ]
    if dtype.itemsize <= LARGEST_BYTEDELTA_STRIDE:
        found.append(([Filter.SHUFFLE, Filter.BYTEDELTA], [0, dtype.itemsize]))
    if dtype in (np.dtype("<f4"), np.dtype("<f8")):
        found.append(([Filter.TRUNC_PREC, Filter.SHUFFLE], [11, 0]))
    return found


@st.composite
def compressions(draw: st.DrawFn, dtype: np.dtype, *, exact: bool = False) -> dict[str, Any]:
    """Draw compression parameters, with `exact` without lossy filters and without delta.

    Delta and dictionaries are only for frames that are written whole. An assignment to a part of a
    chunk decodes the chunk, and python-blosc2 decodes parts of delta chunks wrongly, and cannot
    decode chunks for which a dictionary was requested but gave no gain.
    """
    unfit = {Filter.DELTA, Filter.TRUNC_PREC} if exact else set()
    pipelines = [pair for pair in _pipelines(dtype) if not unfit.intersection(pair[0])]
    filters, metas = draw(st.sampled_from(pipelines))
    codec = draw(st.sampled_from([Codec.BLOSCLZ, Codec.LZ4, Codec.LZ4HC, Codec.ZLIB, Codec.ZSTD]))
    may_have_dict = codec in (Codec.LZ4, Codec.ZSTD) and Filter.TRUNC_PREC not in filters
    return {
        "codec": codec,
        "clevel": draw(st.integers(0, 9)),
        "use_dict": may_have_dict and not exact and draw(st.integers(0, 9)) == 9,
        "splitmode": draw(st.sampled_from(list(SplitMode))),
        "filters": filters,
        "filters_meta": metas,
        "nthreads": 1 if Filter.DELTA in filters else draw(st.integers(1, 2)),
    }


# ---- frames


@dataclass(frozen=True)
class Case:
    """A frame that is written at once."""

    array: np.ndarray
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    cparams: Mapping[str, Any]
    contiguous: bool

    def write(self, path: Path) -> Values:
        """Write the frame and return its elements, which depend on lossy filters."""
        stored = blosc2.asarray(
            self.array,
            urlpath=str(path),
            chunks=self.chunks,
            blocks=self.blocks,
            cparams=dict(self.cparams),
            contiguous=self.contiguous,
        )
        if Filter.TRUNC_PREC in self.cparams["filters"]:
            return Values(stored[...])
        return Values(self.array.view(stored.dtype))


@st.composite
def cases(draw: st.DrawFn, *, contiguous: bool | None = None) -> Case:
    """Draw a frame; sparse ones too, unless `contiguous` is given."""
    dtype, shape = draw(dtypes()), draw(shapes())
    chunks, blocks = draw(grids(shape))
    return Case(
        array=items(dtype, shape, draw(STYLES), draw(SEEDS)),
        chunks=chunks,
        blocks=blocks,
        cparams=draw(compressions(dtype)),
        contiguous=draw(st.booleans()) if contiguous is None else contiguous,
    )


@dataclass(frozen=True)
class SpecialCase:
    """A frame that begins as a constant and gets assignments to some regions."""

    start: str
    """Name of the function of blosc2 that makes it."""
    fill: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    cparams: Mapping[str, Any]
    contiguous: bool
    assignments: tuple[tuple[tuple[slice, ...], np.ndarray], ...]

    def write(self, path: Path) -> tuple[Values, np.ndarray]:
        """Write the frame; return its elements and the kind of each chunk, by python-blosc2."""
        try:
            stored = self._write(path)
        except RuntimeError:
            # python-blosc2 compresses uninitialized memory for unwritten elements, and on rare
            # contents it fails; the next time they are others
            blosc2.remove_urlpath(str(path))
            stored = self._write(path)
        return self._values(), _chunk_kinds(stored)

    def _write(self, path: Path) -> blosc2.NDArray:
        create = getattr(blosc2, self.start)
        stored = create(
            self.shape,
            *([self.fill] if self.start == "full" else []),
            dtype=self.dtype,
            urlpath=str(path),
            chunks=self.chunks,
            blocks=self.blocks,
            cparams=dict(self.cparams),
            contiguous=self.contiguous,
        )
        for region, values in self.assignments:
            stored[region] = values
        return stored

    def _values(self) -> Values:
        array = np.full(self.shape, self.fill, self.dtype)
        written = np.full(self.shape, self.start != "uninit")
        for region, values in self.assignments:
            array[region] = values
            written[region] = True
        return Values(array, written)


def _chunk_kinds(stored: blosc2.NDArray) -> np.ndarray:
    """The code of each chunk in the offset index: 0 stored, 1 zeros, 2 NaN, 4 never written."""
    grid = [-(-n // chunk) for n, chunk in zip(stored.shape, stored.chunks, strict=True)]
    in_index = {0: 0, 1: 1, 2: 2, 3: 0, 4: 4}  # a repeated value (3) is a stored chunk
    kinds = [in_index[info.special.value] for info in stored.schunk.iterchunks_info()]
    return np.array(kinds, "u1").reshape(grid)


FILLS = {"b": [True], "i": [-3], "u": [7], "f": [-0.0, math.nan, 2.5], "c": [1 - 2j], "S": [b"xy"]}
FILLABLE = ["?", "<i2", ">i4", "u1", "<u8", "<f4", ">f4", "<f8", ">f8", "<f2", "<c8", ">c16", "S2"]


@st.composite
def special_cases(draw: st.DrawFn, start: str) -> SpecialCase:
    """Draw a frame of "zeros", "nans", one value ("full") or nothing, partly written over."""
    fills: dict[str, Any] = {"zeros": 0, "uninit": 0, "nans": math.nan}
    names = {"full": FILLABLE, "nans": ["<f4", "<f8"]}.get(start, SIMPLE_DTYPES)
    dtype = np.dtype(draw(st.sampled_from(names)))
    fill = fills[start] if start in fills else draw(st.sampled_from(FILLS[dtype.kind]))
    if dtype.kind in "SUV" and not fill:
        fill = np.zeros((), dtype)
    shape = draw(shapes(shortest_axis=1))
    chunks, blocks = draw(grids(shape))
    count = draw(st.integers(0, 3)) if shape else 0
    return SpecialCase(
        start=start,
        fill=fill,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        blocks=blocks,
        cparams=draw(compressions(dtype, exact=True)),
        contiguous=draw(st.booleans()),
        assignments=tuple(draw(_assignments(shape, dtype)) for _ in range(count)),
    )


@st.composite
def _assignments(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[tuple[slice, ...], np.ndarray]:
    starts = [draw(st.integers(0, length - 1)) for length in shape]
    bounds = zip(starts, shape, strict=True)
    region = tuple(slice(start, draw(st.integers(start + 1, length))) for start, length in bounds)
    lengths = tuple(part.stop - part.start for part in region)
    return region, items(dtype, lengths, draw(STYLES), draw(SEEDS))


# ---- selections


# cached, since Hypothesis validates each new one
@lru_cache(maxsize=1000)
def _slices(length: int) -> st.SearchStrategy[slice]:
    bounds = st.none() | st.integers(-length - 3, length + 3)
    steps = st.none() | st.sampled_from([1, 2, 3, -1, -2, -5, length + 2, -length - 2])
    return st.builds(slice, bounds, bounds, steps)


@lru_cache(maxsize=1000)
def _items_or_slices(length: int) -> st.SearchStrategy[int | slice]:
    slices = _slices(length)
    return st.integers(-length, length - 1) | slices if length else slices


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Index:
    """Draw a basic index: integers, slices past the ends too, an ellipsis, new axes."""
    used = draw(st.integers(0, len(shape)))
    before = draw(st.integers(0, used)) if draw(st.booleans()) else None
    split = used if before is None else before
    lengths = [*shape[:split], *shape[len(shape) - (used - split) :]]
    index: list[Any] = [draw(_items_or_slices(length)) for length in lengths]
    if before is not None:
        index.insert(before, ...)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        index.insert(draw(st.integers(0, len(index))), None)
    return index[0] if len(index) == 1 and draw(st.booleans()) else tuple(index)


@st.composite
def _axis_chunks(draw: st.DrawFn, length: int) -> int | tuple[int, ...]:
    if not length or draw(st.booleans()):
        return draw(st.sampled_from([-1, max(1, -(-length // 3)), length + 2]))
    cuts = draw(st.sets(st.integers(0, length), max_size=3)) - {0, length}
    edges = [0, *sorted(cuts), length]
    return tuple(stop - start for start, stop in itertools.pairwise(edges))


@st.composite
def dask_chunks(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw a value of `chunks=` that fits the shape, other than None and "auto"."""
    axes = tuple(draw(_axis_chunks(length)) for length in shape)
    form = draw(st.sampled_from(["all axes", "one number", "some axes"]))
    if form == "one number":
        return draw(st.sampled_from([-1, *(max(1, -(-length // 2)) for length in shape)]))
    if form == "some axes":
        return {axis: chunk for axis, chunk in enumerate(axes) if draw(st.booleans())}
    return axes
