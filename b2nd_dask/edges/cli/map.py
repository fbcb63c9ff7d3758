"""`map`: a picture of the chunks of a frame, in the terminal or as PNG."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.text import Text

from b2nd_dask.edges.cli.failures import Verb, safe
from b2nd_dask.edges.cli.options import lengths, path_argument, storage_options
from b2nd_dask.edges.cli.picture import GAP, LEVELS, MOST_LEVELS, Picture, picture_of
from b2nd_dask.edges.cli.terminal import Stdout
from b2nd_dask.edges.display.chunk_values import (
    MIXED,
    STATISTICS,
    chunk_statistic,
    require_known,
    statistic_text,
)
from b2nd_dask.edges.extras import require
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ONE_VALUE, ChunkTable, chunk_table
from b2nd_dask.frame.info import KIND_NAMES, dims_of, lengths_text
from b2nd_dask.frame.sizes import decimal

#: Chunks of which headers are read where kinds or sizes are asked for, in about a second.
_MOST_HEADERS = 100_000
_ROWS, _COLUMNS = 24, 80


class _Symbol(NamedTuple):
    """How a cell is shown: with Unicode, without, and in which colour."""

    block: str
    ascii: str
    style: str
    name: str


_SYMBOLS = {
    int(ChunkKind.STORED): _Symbol("█", "#", "blue", KIND_NAMES[ChunkKind.STORED]),
    MIXED: _Symbol("▓", "+", "cyan", "several kinds"),
    ONE_VALUE: _Symbol("▒", "=", "green", KIND_NAMES[ONE_VALUE]),
    int(ChunkKind.ZEROS): _Symbol("·", ".", "bright_black", KIND_NAMES[ChunkKind.ZEROS]),
    int(ChunkKind.NAN): _Symbol("░", "n", "yellow", KIND_NAMES[ChunkKind.NAN]),
    int(ChunkKind.UNINIT): _Symbol("○", "?", "magenta", KIND_NAMES[ChunkKind.UNINIT]),
    GAP: _Symbol(" ", " ", "", ""),
}
_BLOCKS, _LETTERS = "▁▂▃▄▅▆▇█", "12345678"
_STYLES = ("blue", "cyan", "green", "yellow", "magenta", "red", "bright_blue", "bright_green")


@click.command("map", cls=Verb)
@path_argument
@click.option(
    "--by",
    type=click.Choice(["kind", "cbytes", "ratio", "codec", *STATISTICS]),
    default="kind",
    show_default=True,
    help="What a cell shows of a chunk.",
)
@click.option(
    "--at",
    callback=lengths,
    metavar="N,...",
    help="Position in the chunk grid along the first axes; by default all.",
)
@click.option("--width", type=click.IntRange(1, 10_000), help="Columns; by default the terminal's.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A PNG file instead; needs the extra "plot".',
)
@storage_options
def map_command(
    path: str,
    by: str,
    at: int | tuple[int, ...] | None,
    width: int | None,
    output: Path | None,
    storage_options: dict[str, Any],
) -> None:
    """Draw the chunks of the frame at PATH, each a cell, or some neighbours where there are many.

    The last two axes are rows and columns; planes of the others stand side by side, or are
    projected where they are too many. No chunk is decoded.

    \b
    Examples:
      b2nd-dask map rain.b2nd
      b2nd-dask map --by ratio --at 0 rain.b2nd
      b2nd-dask map --by max rain.b2nd
      b2nd-dask map --by codec --output rain.png rain.b2nd
    """
    frame = open_b2nd(path, verify=False, storage_options=storage_options)
    if output is not None:
        _save(frame, by, output)
        click.echo(safe(str(output)))
        return
    table = _table(frame, by)
    chosen = _chosen(table, at)
    size = shutil.get_terminal_size((_COLUMNS, _ROWS + 8))
    rows = max(4, size.lines - 8) if sys.stdout.isatty() else _ROWS
    statistic = chunk_statistic(frame, by) if by in STATISTICS else None
    picture = picture_of(table, by, chosen, rows, width or size.columns, statistic)
    _print(frame, table, by, chosen, picture, width or size.columns)


def _save(frame: Frame, by: str, output: Path) -> None:
    require("plot", "matplotlib").use("agg")
    from b2nd_dask.edges.plot.chunk_map import chunk_map

    figure: Any = chunk_map(frame, by).figure  # type: ignore[arg-type]
    figure.savefig(output, format="png", dpi=150, bbox_inches="tight")


def _table(frame: Frame, by: str) -> ChunkTable:
    reference = reference_of(frame)
    all_of_them = by == "codec" or (by in _UNIT and not frame.contiguous)
    table = chunk_table(reference, None if all_of_them else _MOST_HEADERS)
    require_known(frame, table, by)
    return table


def _chosen(table: ChunkTable, at: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Positions along the first axes, checked."""
    given = () if at is None else at if isinstance(at, tuple) else (at,)
    left_out = max(0, table.kinds.ndim - 2)
    if len(given) > left_out:
        raise click.UsageError(
            f"--at has {len(given)} positions, and the chunk grid {left_out} axes beside rows and "
            "columns"
        )
    for axis, (position, count) in enumerate(zip(given, table.kinds.shape, strict=False)):
        if not -count <= position < count:
            raise click.UsageError(f"--at {position}: axis {axis} has {count} chunks")
    return given


def _print(
    frame: Frame,
    table: ChunkTable,
    by: str,
    at: tuple[int, ...],
    picture: Picture,
    width: int,
) -> None:
    console = Stdout()
    for text in (
        f"{frame.path}: {lengths_text(table.kinds.shape)} chunks",
        _axes_text(frame, at, picture),
    ):
        console.print(Text(safe(text)), soft_wrap=True)
    symbols = _symbols(table, by, is_ascii=_is_plain(console))
    wide = 2 if picture.cells.shape[1] * 2 <= width else 1
    for row in picture.cells.tolist():
        line = Text(no_wrap=True)
        for code, cells in itertools.groupby(row):
            symbol = symbols[code]
            line.append(symbol[0] * wide * len(list(cells)), symbol[1] or None)
        console.print(line, soft_wrap=True)
    for line in _legend(frame, table, by, picture, symbols):
        console.print(line, soft_wrap=True)


def _is_plain(console: Console) -> bool:
    """Whether only ASCII can be shown."""
    encoding = (console.file.encoding or "ascii") if hasattr(console.file, "encoding") else "ascii"
    return os.environ.get("TERM") == "dumb" or not encoding.lower().startswith("utf")


def _symbols(table: ChunkTable, by: str, *, is_ascii: bool) -> dict[int, tuple[str, str, str]]:
    """Character, colour and name of each code."""
    found = {
        code: (each.ascii if is_ascii else each.block, each.style, each.name)
        for code, each in _SYMBOLS.items()
    }
    if by == "codec":
        for number, name in enumerate(table.codec_names):
            letter = chr(ord("A") + number % 26)
            found[LEVELS + number] = (letter, _STYLES[number % len(_STYLES)], name)
    else:
        for level in range(MOST_LEVELS):
            symbol = _LETTERS[level] if is_ascii else _BLOCKS[level]
            found[LEVELS + level] = (symbol, "blue", "")
    return found


def _axes_text(frame: Frame, at: tuple[int, ...], picture: Picture) -> str:
    """What rows and columns are, and what a cell stands for."""
    names = dims_of(reference_of(frame)) or tuple(f"axis {axis}" for axis in range(frame.ndim))
    if not names:
        return "one chunk"
    parts = [f"{name} {position}" for name, position in zip(names, at, strict=False)]
    left = names[len(at) : -2]
    if left:
        many = picture.panels > 1
        parts.append(f"{'a panel for each' if many else 'all'} of {', '.join(left)}")
    if frame.ndim > 1:
        parts.append(f"rows {names[-2]}, columns {names[-1]}")
    else:
        parts.append(names[-1] + ", row by row" * picture.is_wrapped)
    step = picture.step if frame.ndim > 1 else picture.step[-1:]
    parts.append("a cell is " + (f"{lengths_text(step)} chunks" if max(step) > 1 else "a chunk"))
    return "; ".join(parts)


def _legend(
    frame: Frame,
    table: ChunkTable,
    by: str,
    picture: Picture,
    symbols: dict[int, tuple[str, str, str]],
) -> Iterator[Text]:
    """Name the symbols that there are, with how many chunks are of each."""
    counts: dict[int, int | None] = dict(table.counts)
    if by in STATISTICS:
        # which special chunks have, too
        counts = {code: None for code in counts if (picture.cells == code).any()}
    if (picture.cells == MIXED).any():
        counts[MIXED] = None
    if by == "codec" and table.codecs is not None:
        found = np.bincount(table.codecs[table.data], minlength=len(table.codec_names))
        counts |= {LEVELS + number: int(count) for number, count in enumerate(found) if count}
    if picture.bounds is not None:
        low, high = (_value_text(bound, by, frame.dtype) for bound in picture.bounds)
        first, last = (symbols[LEVELS + level][0] for level in (0, MOST_LEVELS - 1))
        yield Text.assemble(
            (first, "blue"), f" {low} to ", (last, "blue"), f" {high} {_UNIT.get(by, by)}"
        )
    for code, count in counts.items():
        if by in _SAY_STORED and code == ChunkKind.STORED:
            continue
        symbol, style, name = symbols[code]
        share = "" if count is None else f" {count} ({100 * count / table.kinds.size:.3g} %)"
        yield Text.assemble((symbol, style), f" {name}{share}")


#: What only chunks with data have.
_SAY_STORED = ("cbytes", "ratio", "codec")
_UNIT = {"cbytes": "a chunk", "ratio": "compression ratio"}


def _value_text(value: float, by: str, dtype: np.dtype[Any]) -> str:
    return decimal(round(value)) if by == "cbytes" else statistic_text(value, by, dtype)
