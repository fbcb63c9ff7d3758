"""Values of each chunk for pictures of the chunk grid: kind or codec, size, a statistic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.cells import MIXED
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ONE_VALUE, ChunkTable, chunk_table
from b2nd_dask.frame.info import KIND_NAMES, decimal

#: First code of codecs; lower codes are kinds of chunks.
CODECS = 16

#: Statistics of chunks in `Frame.stats`.
Statistic = Literal["min", "max", "mean", "nans", "nonzeros"]
#: Values that a picture can show.
By = Literal["kind", "cbytes", "ratio", "codec", Statistic]
STATISTICS, BY = get_args(Statistic), get_args(By)

_UNITS = {"cbytes": "compressed", "ratio": "compression ratio"}


class Kind(NamedTuple):
    """Name, colours and characters of a kind of chunks."""

    name: str
    css: str
    light: str
    """Colour on white."""
    dark: str
    """Colour on black."""
    block: str
    """Character in a terminal."""
    ascii: str
    """Character in a terminal without Unicode."""
    ansi: str
    """Name of the terminal's colour."""


#: The palette of Okabe and Ito, distinct for any colour vision.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
#: Colours of this palette; zeros are pale.
_LOOKS = {
    ChunkKind.STORED: ("stored", "#0072b2", "#3d9bd9", "█", "#", "blue"),
    MIXED: ("mixed", "#7fb9dc", "#1f5f8c", "▓", "+", "cyan"),
    ChunkKind.ZEROS: ("zeros", "#e3e6ea", "#3a414b", "·", ".", "bright_black"),
    ONE_VALUE: ("value", "#009e73", "#2fc49a", "▒", "=", "green"),
    ChunkKind.NAN: ("nan", "#e69f00", "#f0b93a", "░", "n", "yellow"),
    ChunkKind.UNINIT: ("uninit", "#cc79a7", "#d98cb8", "○", "?", "magenta"),
}
KINDS: dict[int, Kind] = {
    int(code): Kind(KIND_NAMES.get(code, "several kinds"), *look) for code, look in _LOOKS.items()
}


def is_logarithmic(by: str, low: float, high: float) -> bool:
    """Whether a scale between two numbers is logarithmic: for sizes with a wide range."""
    return by in _UNITS and high > 20 * low


@dataclass(frozen=True, eq=False)
class ChunkValues:
    """The value to show of each chunk of a frame, in the shape of the chunk grid."""

    by: str
    dtype: np.dtype[Any]
    """Dtype of the elements."""
    codes: NDArray[np.uint8]
    """Kinds of the chunks; for a map of codecs, the codecs of chunks with data."""
    numbers: NDArray[np.float64] | None
    """The numbers to show; a chunk with NaN is shown by its kind."""
    codecs: tuple[str, ...]
    """Names of the codecs; the code of each is `CODECS` plus its position."""
    counts: Mapping[int, int]
    """Number of chunks with each code, without chunks that show a number."""

    @property
    def unit(self) -> str:
        """Label of the numbers."""
        return _UNITS.get(self.by, self.by)

    def text(self, number: float) -> str:
        """A number as readable text; ticks of a time dtype as a time."""
        if self.by == "cbytes":
            return decimal(round(number))
        if self.dtype.kind in "mM" and self.by in ("min", "max", "mean"):
            return str(np.array(round(number), np.int64).view(self.dtype.newbyteorder("=")))
        return f"{number:.3g}"

    def legend(self, cells: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
        """Codes in the picture with their texts: name, number and share of chunks.

        `cells` are the cells that show no number.
        """
        names = {code: kind.name for code, kind in KINDS.items()}
        names |= dict(enumerate(self.codecs, CODECS))
        for code, name in names.items():
            count = self.counts.get(code, 0)
            if count:
                yield code, f"{name} {count:,} ({100 * count / self.codes.size:.3g} %)"
            elif code == MIXED and (cells == MIXED).any():
                yield code, name


def chunk_values(frame: Frame, by: str, table: ChunkTable | None = None) -> ChunkValues:
    """Collect the values of each chunk of a frame for a picture; `by` is one of `BY`.

    The default table has the headers of all chunks. Raises ValueError if the frame does not have
    the value.
    """
    table = table or chunk_table(reference_of(frame))
    require_known(frame, table, by)
    codes, numbers, counts = table.kinds, None, table.counts
    if by == "codec":
        codes = _with_codecs(table)
    elif by != "kind":
        found = _statistic(frame, by) if by in STATISTICS else _sizes(table, by)
        numbers = found.reshape(codes.shape)
    if by != "kind":
        shown = codes.reshape(-1) if numbers is None else codes[np.isnan(numbers)]
        counts = {code: int(n) for code, n in enumerate(np.bincount(shown)) if n}
    codecs = table.codec_names if by == "codec" else ()
    return ChunkValues(by, frame.dtype, codes, numbers, codecs, counts)


def require_known(frame: Frame, table: ChunkTable, by: str) -> None:
    """Check that codecs or sizes of chunks are known, if `by` needs them.

    Raises ValueError if they are unknown: only chunks have them, and the chunks are in a store.
    """
    if by == "codec" and not table.is_exact:
        raise ValueError(f"{frame.path}: codecs are in chunk headers, which are in a store")
    if by in ("cbytes", "ratio") and len(table.stored) and not len(table.nbytes):
        raise ValueError(f"{frame.path}: chunk sizes of a sparse frame in a store are unknown")


def _sizes(table: ChunkTable, by: str) -> NDArray[np.float64]:
    """Compressed bytes or ratio of each chunk with data; NaN for the others."""
    values = np.full(table.kinds.size, np.nan)
    nbytes = np.maximum(table.nbytes[table.data], 1)
    values[table.stored[table.data]] = nbytes if by == "cbytes" else table.chunk_nbytes / nbytes
    return values


def _with_codecs(table: ChunkTable) -> NDArray[np.uint8]:
    """Codec of each chunk with data, kind of each other chunk."""
    flat = table.kinds.reshape(-1).copy()
    if table.codecs is not None:
        flat[table.stored[table.data]] = CODECS + table.codecs[table.data]
    return flat.reshape(table.kinds.shape)


def _statistic(frame: Frame, name: str) -> NDArray[np.float64]:
    """One statistic of each chunk; times as integer ticks."""
    if frame.stats is None:
        known = supports_statistics(frame.dtype)
        hint = "b2nd_dask.add_stats adds statistics" if known else f"elements of {frame.dtype}"
        raise ValueError(f"{frame.path}: the {name} of its chunks is unknown: {hint}")
    found = getattr(frame.stats.chunks, name)
    if found is None or found.dtype.kind == "c":
        raise ValueError(f"{frame.path}: a scale cannot show the {name} of complex numbers")
    if found.dtype.kind in "mM":
        found = found.astype(found.dtype.newbyteorder("=")).view(np.int64)
    values: NDArray[Any] = np.ma.filled(found.astype(np.float64), np.nan)
    values[~np.isfinite(values)] = np.nan
    return values
