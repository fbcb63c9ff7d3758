"""Pictures of the chunk grid: what each chunk shows, and the arrangement of chunks in cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table, counts_of
from b2nd_dask.frame.info import KIND_NAMES, decimal, lengths_text

#: Code of a cell with chunks of several kinds, first code of codecs, and code of the space between
#: panels; other codes are kinds of chunks.
MIXED, CODECS, GAP = 9, 16, 255

#: Statistics of chunks in `Frame.stats`.
Statistic = Literal["min", "max", "mean", "nans", "nonzeros"]
#: Values that a picture can show.
By = Literal["kind", "cbytes", "ratio", "codec", Statistic]
STATISTICS, BY = get_args(Statistic), get_args(By)

_UNITS = {"cbytes": "compressed", "ratio": "compression ratio"}


class Kind(NamedTuple):
    """Name, CSS class, colours on white and on black; characters and colour in a terminal."""

    name: str
    css: str
    light: str
    dark: str
    block: str
    ascii: str
    ansi: str


#: The palette of Okabe and Ito, distinct for any colour vision.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
#: Colours of this palette; zeros are pale.
_LOOKS = {
    ChunkKind.STORED: ("stored", "#0072b2", "#3d9bd9", "█", "#", "blue"),
    MIXED: ("mixed", "#7fb9dc", "#1f5f8c", "▓", "+", "cyan"),
    ChunkKind.ZEROS: ("zeros", "#e3e6ea", "#3a414b", "·", ".", "bright_black"),
    ChunkKind.ONE_VALUE: ("value", "#009e73", "#2fc49a", "▒", "=", "green"),
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

    @property
    def unit(self) -> str:
        """Label of the numbers."""
        return _UNITS.get(self.by, self.by)

    def text(self, number: float) -> str:
        """A number as readable text; ticks of a time dtype as a time."""
        if self.by == "cbytes":
            return decimal(round(number))
        if self.dtype.kind in "mM" and self.by in ("min", "max", "mean"):
            # a float near the last times may exceed them; the least integer is NaT
            most = np.iinfo(np.int64).max
            ticks = np.int64(min(max(round(number), -most), most))
            return str(ticks.view(self.dtype.newbyteorder("=")))
        return f"{number:.3g}"

    def legend(self, cells: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
        """Codes in the picture with their texts: name, number and share of chunks.

        `cells` are the cells that show no number.
        """
        names = {code: kind.name for code, kind in KINDS.items()}
        names |= dict(enumerate(self.codecs, CODECS))
        shown = self.codes if self.numbers is None else self.codes[np.isnan(self.numbers)]
        counts = counts_of(shown)
        for code, name in names.items():
            count = counts.get(code, 0)
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
    codes, numbers = table.kinds, None
    if by == "codec" and table.codecs is not None:
        codes = _placed(CODECS + table.codecs, table, codes)
    elif by in _UNITS:
        nbytes = np.maximum(table.nbytes, 1)
        sizes = nbytes if by == "cbytes" else table.chunk_nbytes / nbytes
        numbers = _placed(sizes, table, np.full(codes.shape, np.nan))
    elif by in STATISTICS:
        numbers = _statistic(frame, by).reshape(codes.shape)
    codecs = table.codec_names if by == "codec" else ()
    return ChunkValues(by, frame.dtype, codes, numbers, codecs)


def require_known(frame: Frame, table: ChunkTable, by: str) -> None:
    """Raise ValueError if `by` needs codecs or sizes that only chunks in a store have."""
    if by == "codec" and not table.is_exact:
        raise ValueError(f"{frame.path}: codecs are in chunk headers, which are in a store")
    if by in _UNITS and len(table.stored) and not len(table.nbytes):
        raise ValueError(f"{frame.path}: chunk sizes of a sparse frame in a store are unknown")


def _placed(column: NDArray[Any], table: ChunkTable, others: NDArray[Any]) -> NDArray[Any]:
    """The values of the chunks with data, and `others` for the other chunks."""
    values = others.copy().reshape(-1)
    values[table.stored[table.data]] = column[table.data]
    return values.reshape(others.shape)


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


def step_for(counts: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks per cell along each axis, for at most `most` cells."""
    return tuple(max(1, -(-n // m)) for n, m in zip(counts, most, strict=True))


def binned_kinds(kinds: NDArray[np.uint8], step: tuple[int, ...]) -> NDArray[np.uint8]:
    """Combine neighbouring chunks into cells: their common kind, or `MIXED`.

    Examples
    --------
    >>> binned_kinds(np.array([0, 0, 1, 1, 0, 1, 4], np.uint8), (2,))
    array([0, 1, 9, 4], dtype=uint8)
    """
    if kinds.size and not any(kinds.strides):
        counts = tuple(-(-n // s) for n, s in zip(kinds.shape, step, strict=True))
        return np.broadcast_to(kinds.flat[0], counts)
    low, high = (binned(ufunc, kinds, step) for ufunc in (np.minimum, np.maximum))
    mixed: NDArray[Any] = np.where(low == high, low, np.uint8(MIXED))
    return mixed.astype(np.uint8)


def binned_means(values: NDArray[Any], step: tuple[int, ...]) -> NDArray[np.float64]:
    """Mean of the numbers in each cell, without NaN; NaN for a cell without numbers.

    Examples
    --------
    >>> binned_means(np.array([1.0, 3, np.nan, np.nan, 5]), (2,))
    array([ 2., nan,  5.])
    """
    valid = ~np.isnan(values) if values.dtype.kind == "f" else None
    if valid is None or valid.all():
        sides = zip(values.shape, step, strict=True)
        counts = reduce(np.multiply.outer, [np.diff([*range(0, n, s), n]) for n, s in sides])
    else:
        values, counts = np.where(valid, values, 0), binned(np.add, valid, step, np.float64)
    total = binned(np.add, values, step, np.float64)
    means: NDArray[np.float64] = np.full(total.shape, np.nan)
    np.divide(total, counts, out=means, where=counts > 0)
    return means


def binned(
    ufunc: np.ufunc, values: NDArray[Any], step: tuple[int, ...], dtype: Any = None
) -> NDArray[Any]:
    """Reduce each cell of `step` values along each axis; fewer at the edge."""
    for axis, size in enumerate(step):
        if size > 1 and math.prod(values.shape[axis + 1 :]) > 1:
            # a loop is 20 times as fast as reduceat where neighbours are not adjacent in memory
            rows = np.moveaxis(values, axis, 0)
            parts = (rows[at : at + size] for at in range(0, len(rows), size))
            found = np.array([ufunc.reduce(part, 0, dtype=dtype) for part in parts])
            values = np.moveaxis(found, 0, axis)
        elif size > 1:
            values = ufunc.reduceat(values, np.arange(0, values.shape[axis], size), axis, dtype)
    return values


def panels_of(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """The chunk grid as panels of rows and columns: all axes before the last two become one.

    In a grid of one axis each chunk is a panel of one cell; these fill row after row without gaps.
    """
    if len(grid) < 2:
        return math.prod(grid), 1, 1
    return math.prod(grid[:-2]), grid[-2], grid[-1]


@dataclass(frozen=True)
class Layout:
    """Arrangement of the chunks of a grid in a picture."""

    counts: tuple[int, int, int]
    """Numbers of panels, and of rows and columns of chunks."""
    step: tuple[int, ...]
    """Chunks per cell along each of these."""
    across: int
    """Panels side by side."""
    gap: tuple[int, int] = (0, 0)
    """Cells above each panel, and between panels side by side."""

    @property
    def cells(self) -> tuple[int, ...]:
        """Numbers of panels, and of rows and columns of cells in each."""
        return tuple(-(-n // s) for n, s in zip(self.counts, self.step, strict=True))

    def cell_height(self, chunks: tuple[int, ...]) -> float:
        """Height of a cell of width 1, by the lengths of chunks; cells in rows are squares."""
        if len(chunks) < 2:
            return 1
        high, wide = (c * s for c, s in zip(chunks[-2:], self.step[1:], strict=True))
        return high / max(wide, 1)

    def corner(self, panel: int) -> tuple[int, int]:
        """Row and column of the first cell of a panel."""
        down, across = divmod(panel, self.across)
        (_, rows, columns), (above, between) = self.cells, self.gap
        return down * (rows + above) + above, across * (columns + between)

    def placed(self, cells: NDArray[Any], gap: Any) -> NDArray[Any]:
        """Cells of all panels as one picture, with the value `gap` between them."""
        (panels, rows, columns), (above, between) = cells.shape, self.gap
        down, across = -(-panels // self.across), self.across
        boxes = np.full((down * across, rows + above, columns + between), gap, cells.dtype)
        boxes[:panels, above:, :columns] = cells
        tiles = boxes.reshape(down, across, *boxes.shape[1:]).swapaxes(1, 2)
        picture = tiles.reshape(down * (rows + above), across * (columns + between))
        return picture[:, : picture.shape[1] - between]

    def kinds(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The picture of the chunks' codes."""
        return self.placed(binned_kinds(codes.reshape(self.counts), self.step), GAP)

    def means(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The picture of the chunks' numbers; NaN for a cell without numbers."""
        return self.placed(binned_means(numbers.reshape(self.counts), self.step), np.nan)


def cell_text(step: tuple[int, ...]) -> str:
    """Text about the chunks in a cell; empty for one chunk per cell."""
    return f"a cell: up to {lengths_text(step)} chunks" if max(step, default=1) > 1 else ""


def layout_for(grid: tuple[int, ...], rows: int, columns: int, *, doubled: bool = False) -> Layout:
    """Arrange a chunk grid in at most `rows` x `columns` cells, with panels side by side.

    If `doubled`, a cell takes two columns if they fit.
    """
    counts = panels_of(grid)
    if len(grid) < 2:
        step = step_for(counts, (rows * columns, 1, 1))
        return Layout(counts, step, max(1, min(-(-counts[0] // step[0]), columns)))
    _, down, wide = Layout(counts, step_for(counts, (1, rows, columns)), 1).cells
    room = columns // 2 if doubled and wide <= columns // 2 else columns
    across = max(1, (room + 1) // (wide + 1))
    panels = across * max(1, (rows + 1) // (down + 1))
    return Layout(
        counts, step_for(counts, (panels, rows, columns)), min(across, max(1, counts[0])), (1, 1)
    )


def layout_text(names: tuple[str, ...], layout: Layout, at: tuple[int, ...] = ()) -> str:
    """Text about rows, columns, panels and cells.

    The layout has the axes behind those with selected positions, `at`, in the chunk grid.
    """
    if not names:
        return "one chunk"
    parts = [f"{name} {position}" for name, position in zip(names, at, strict=False)]
    left = names[len(at) : -2]
    if left:
        many = layout.step[0]
        each = f"each {many} chunks" if many > 1 else "each"
        panels = f"a panel for {each}" if layout.cells[0] > 1 else "all"
        parts.append(f"{panels} of {', '.join(left)}")
    if len(names) > 1:
        parts.append(f"rows {names[-2]}, columns {names[-1]}")
    else:
        parts.append(names[-1] + ", row by row" * (layout.cells[0] > layout.across))
    step = layout.step[1:] if len(names) > 1 else layout.step[:1]
    return "; ".join([*parts, cell_text(step) or "a cell is a chunk"])
