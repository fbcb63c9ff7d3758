"""Compression parameters: those stored in frames, those accepted from users, and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

import blosc2

from b2nd_dask.errors import UnsupportedFrameError

#: Elements that are wider are stored with a typesize of 1.
MAX_TYPESIZE = 255
#: Names of the codecs and filters that need no further parameters.
CODECS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
FILTERS = ("nofilter", "shuffle", "bitshuffle", "delta", "bytedelta")
#: NDLZ and ZFP compress cells of the array. They need its shape, which a single chunk lacks.
SHAPED_CODECS = frozenset({32, 33, 34, 35})
#: NDCELL and NDMEAN also need the array's shape.
SHAPED_FILTERS = frozenset({32, 33})
#: DELTA uses block 0 of the decoded data as its reference (docs/format.md, Chunk body).
DELTA_FILTER = 3

_SLOTS = 6
#: Level 5, the default of python-blosc2, takes three to ten times the CPU time and makes files a
#: few percent smaller (benchmarks/DEFAULTS.md).
_CLEVEL = 1
#: Most bytes of a block: smaller blocks make larger files, larger ones slow the read of an element.
_BLOCK_NBYTES = 1 << 17
#: Rows of a block are not cut below this many bytes, since shorter rows read no faster.
_ROW_NBYTES = 64
#: Largest padding, as a fraction of the axis, if blocks do not divide a chunk.
_MOST_PADDING = 1 / 16
#: Parameters of python-blosc2 that do not affect the output, or that this package sets itself.
_OWN_PARAMETERS = frozenset({"nthreads", "tuner", "typesize", "blocksize"})


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression parameters, with the ids of `blosc2.Codec`, `Filter` and `SplitMode`."""

    codec: int
    clevel: int
    filters: tuple[int, ...]
    filters_meta: tuple[int, ...] = (0,) * 6
    splitmode: int = 3
    codec_meta: int = 0
    use_dict: bool = False

    @property
    def needs_shape(self) -> bool:
        """Whether encoding or decoding a chunk needs the shapes of the array."""
        return self.codec in SHAPED_CODECS or not SHAPED_FILTERS.isdisjoint(self.filters)

    @property
    def has_independent_blocks(self) -> bool:
        """Whether a block decodes without other blocks and without the shapes of the array."""
        return not (self.use_dict or self.needs_shape or DELTA_FILTER in self.filters)


def compression_of(cparams: Any, itemsize: int) -> Compression:
    """Convert python-blosc2's compression parameters; defaults complete a dict.

    The defaults are those of python-blosc2 with two exceptions. The level is 1. Elements with a
    typesize of 1 get no filter, since a shuffle would not change them. Codec and filters may be
    names. `nthreads` and `tuner` have no effect: each task compresses with one thread.

    Raises `TypeError` for an unknown parameter, codec or filter; `ValueError` for a typesize or a
    blocksize that contradicts dtype and blocks; `UnsupportedFrameError` for a codec or filter that
    needs the array's shape (ZFP, NDLZ, NDCELL, NDMEAN).

    Examples
    --------
    >>> found = compression_of({"filters": ["bitshuffle"]}, 8)
    >>> found.codec, found.clevel, found.filters
    (5, 1, (2, 0, 0, 0, 0, 0))
    >>> compression_of(None, 8).filters, compression_of(None, 1).filters
    ((0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0))
    """
    if not isinstance(cparams, blosc2.CParams | Mapping | None):
        raise TypeError(
            "cparams must be a blosc2.CParams or a dict of its parameters, not "
            f"{type(cparams).__name__}"
        )
    given = asdict(cparams) if isinstance(cparams, blosc2.CParams) else dict(cparams or {})
    if not isinstance(cparams, blosc2.CParams) and given.get("typesize", itemsize) != itemsize:
        raise ValueError(
            f"cparams has typesize {given['typesize']}, but the elements have {itemsize} bytes"
        )
    if given.get("blocksize"):
        raise ValueError("cparams has a blocksize; give the shape of blocks by blocks= instead")
    chosen = {name: value for name, value in given.items() if name not in _OWN_PARAMETERS}
    chosen.setdefault("clevel", _CLEVEL)
    if not 1 < itemsize <= MAX_TYPESIZE:
        chosen.setdefault("filters", [])
    _check_names(chosen)
    if not isinstance(chosen["clevel"], int) or not 0 <= chosen["clevel"] <= 9:
        raise ValueError(f"clevel={chosen['clevel']!r}: give an int from 0 to 9")
    if "codec" in chosen:
        chosen["codec"] = _member("codec", blosc2.Codec, CODECS, chosen["codec"])
    if "filters" in chosen:
        named = chosen["filters"]
        several = [named] if isinstance(named, str | blosc2.Filter | int) else named
        chosen["filters"] = [_member("filters", blosc2.Filter, FILTERS, one) for one in several]
    # CParams supplies the other defaults
    params = blosc2.CParams(**chosen, typesize=min(itemsize, MAX_TYPESIZE))
    filters, metas = _fill_slots(params.filters), _fill_slots(params.filters_meta)
    compression = Compression(
        codec=int(getattr(params.codec, "value", params.codec)),
        clevel=params.clevel,
        filters=filters,
        filters_meta=metas,
        splitmode=int(getattr(params.splitmode, "value", params.splitmode)),
        codec_meta=params.codec_meta,
        use_dict=bool(params.use_dict),
    )
    if compression.needs_shape:
        raise UnsupportedFrameError(
            f"codec {compression.codec} with filters {filters} needs the array's shape, but "
            "b2nd_dask compresses each chunk alone; write such arrays with blosc2.asarray"
        )
    return compression


def default_blocks(chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Choose blocks that are about the same fraction of a chunk along each axis.

    Then a read of a plane or a series along any axis decodes a small fraction of each chunk.

    Examples
    --------
    >>> default_blocks((64, 180, 360), 4), default_blocks((5, 1000, 1000, 3), 1)
    ((8, 45, 90), (1, 125, 250, 3))
    """
    blocks = list(chunks)
    while math.prod(blocks) * itemsize > _BLOCK_NBYTES:
        smaller = [_smaller(b, c) for b, c in zip(blocks, chunks, strict=True)]
        axes = [axis for axis, b in enumerate(blocks) if smaller[axis] < b]
        if axes and axes[-1] == len(blocks) - 1 and smaller[-1] * itemsize < _ROW_NBYTES:
            axes.pop()
        if not axes:
            break
        axis = min(axes, key=lambda axis: chunks[axis] / blocks[axis])
        blocks[axis] = smaller[axis]
    return tuple(blocks)


def _smaller(block: int, chunk: int) -> int:
    """Halve the length of a block; choose a shorter one if the chunk needs too much padding."""
    halves = range(-(-block // 2), 0, -1)
    return next(b for b in halves if -chunk % b <= _MOST_PADDING * chunk)


def cparams_of(compression: Compression, typesize: int) -> Any:
    """Convert to python-blosc2's parameters; unknown codecs and filters stay numbers."""
    return blosc2.CParams(
        codec=compression.codec,
        codec_meta=compression.codec_meta,
        clevel=compression.clevel,
        use_dict=compression.use_dict,
        typesize=typesize,
        splitmode=compression.splitmode,
        filters=list(compression.filters),
        filters_meta=list(compression.filters_meta),
    )


def _check_names(given: Mapping[str, Any]) -> None:
    known = sorted({field.name for field in fields(blosc2.CParams)} - {"typesize", "blocksize"})
    for name in given:
        if name not in known:
            raise TypeError(f"cparams has no {name!r}; known are {', '.join(known)}")


def _member(parameter: str, kind: type[Enum], usual: tuple[str, ...], value: Any) -> Any:
    """Look up a codec or filter by its name; other values are returned unchanged."""
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    if isinstance(value, kind | int) and not isinstance(value, bool):
        return value
    names = ", ".join(usual)
    raise TypeError(f"{parameter}={value!r}; known are blosc2.{kind.__name__} and {names}")


def _fill_slots(values: Any) -> tuple[int, ...]:
    numbers = tuple(int(getattr(value, "value", value)) for value in values)
    return numbers + (0,) * (_SLOTS - len(numbers))
