"""`info` and `map`: contents of frames and stores, by metadata and the headers of chunks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from b2nd_dask.edges.cli.group import Failures, Verb, as_commands, safe
from b2nd_dask.edges.cli.shared import (
    json_option,
    lengths,
    members_at,
    path_argument,
    path_of,
    paths_argument,
    print_columns,
    print_json,
    storage_options,
)
from b2nd_dask.edges.datasets.places import found_at, manifest_of
from b2nd_dask.edges.display.chunk_values import (
    BY,
    CODECS,
    GAP,
    KINDS,
    ChunkValues,
    Layout,
    chunk_values,
    is_logarithmic,
    layout_for,
    layout_text,
)
from b2nd_dask.errors import B2ndError, FrameFormatError
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import chunk_table
from b2nd_dask.frame.info import axis_names, decimal, dims_of, facts_of, lengths_text, one_line
from b2nd_dask.frame.members.listing import Member
from b2nd_dask.lazy import require
from b2nd_dask.storage import Location, printable

#: Most chunks whose headers are read for kinds or sizes; this takes about a second.
_MOST_HEADERS = 100_000
#: Rows of a picture if stdout is no terminal, and lines of a terminal that the text takes.
_ROWS, _TEXT_LINES = 24, 8
#: Code of the lowest level of numbers; `ChunkValues` uses the codes below.
_LEVELS = 128
_BLOCKS, _DIGITS = "▁▂▃▄▅▆▇█", "12345678"
_STYLES = ("blue", "cyan", "green", "yellow", "magenta", "red", "bright_blue", "bright_green")


@click.command("info", cls=Verb)
@paths_argument
@json_option
@storage_options
def info_command(paths: tuple[str, ...], as_json: bool, storage_options: dict[str, Any]) -> int:
    """Describe the frames at PATHS (files, directories or URLs).

    For a dataset or a store of python-blosc2 (.b2z, .b2d, .b2e), list its members and attributes;
    PATH/KEY is one member or group. Reads metadata and, to estimate the bytes that `compact` would
    free, the chunk headers of local frames.

    \b
    Examples:
      b2nd-dask info rain.b2nd
      b2nd-dask info store.b2z/group/rain
      b2nd-dask info --json *.b2nd | jq '.[].ratio'
    """
    found, failures = [], Failures(storage_options)
    for number, path in enumerate(paths):
        with failures.noted(path):
            shown = _opened(path, storage_options, failures)
            if as_json:
                facts = facts_of(reference_of(shown)) if isinstance(shown, Frame) else shown
                found.append(facts)
                continue
            if number:
                click.echo()
            if isinstance(shown, Frame):
                print_columns(
                    (name, as_commands(text) if name in ("checksums", "superseded") else text)
                    for name, text in shown.info.items()
                )
            else:
                _print(shown, many=len(paths) > 1)
    if as_json:
        print_json(found)
    return failures.code


def _print(store: dict[str, Any], *, many: bool) -> None:
    if many:
        click.echo(store["path"])
    if not store["members"]:
        click.echo("no members")
    print_columns(
        (
            printable(each["key"]),
            printable(each["what"]),
            "" if each["nbytes"] is None else decimal(each["nbytes"]),
        )
        for each in store["members"]
    )
    print_columns(
        (f"attribute {name!r}", one_line(each)) for name, each in store["attributes"].items()
    )


def _opened(path: str, options: dict[str, Any], failures: Failures) -> Frame | dict[str, Any]:
    """Open the frame at a path, or describe the store or directory there."""
    try:
        # without verification: `info` also shows damaged frames
        return open_b2nd(path, verify=False, storage_options=options)
    except (B2ndError, OSError):
        members = members_at(path, options)
        if members is None:
            raise
    attributes: dict[str, Any] = {}
    with failures.noted(path):
        place = found_at(path, options)
        if not isinstance(place, Location):
            attributes = dict(manifest_of(place).attrs)
    described = []
    for each in members:
        own, shown = path_of(each, path), replace(each, what="damaged")
        with failures.noted(own):
            shown = _with_shape(each, own)
        described.append(shown)
    return {
        "path": printable(Location.of(path).label),
        "kind": "store",
        "members": [asdict(each) for each in described],
        "attributes": attributes,
    }


def _with_shape(member: Member, path: str) -> Member:
    """Describe a local member by its header; the header of a remote one would cost a request."""
    if member.what.startswith("damaged"):
        raise FrameFormatError(member.what, path=path)
    if member.what != "array" or Location.of(path).is_url:
        return member
    frame = open_b2nd(path, verify=False)
    names = dims_of(reference_of(frame)) or ("",) * frame.ndim
    pairs = zip(names, frame.shape, strict=True)
    shape = " x ".join(f"{name} {n}".strip() for name, n in pairs) or "0-d"
    nbytes = frame.cbytes if member.nbytes is None else member.nbytes
    return replace(member, what=f"array {shape}, {frame.dtype}", nbytes=nbytes)


@click.command("map", cls=Verb)
@path_argument
@click.option(
    "--by",
    type=click.Choice(BY),
    default="kind",
    show_default=True,
    help="Property of a chunk that a cell shows.",
)
@click.option(
    "--at",
    type=lengths,
    metavar="N,...",
    help="Position in the chunk grid along the first axes; all by default.",
)
@click.option("--width", type=click.IntRange(1, 10_000), help="Columns; by default the terminal's.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help='Save a picture to a file (.png, .pdf, .svg, ...); needs the extra "plot".',
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
    """Draw the chunks of the frame at PATH as cells; if there are many, a cell combines neighbours.

    The last two axes are rows and columns. Planes of the other axes are side by side; if there are
    too many, a plane combines neighbours. No chunk is decoded.

    \b
    Examples:
      b2nd-dask map rain.b2nd
      b2nd-dask map --by ratio --at 0 rain.b2nd
      b2nd-dask map --by max rain.b2nd
      b2nd-dask map --by codec --output rain.png rain.b2nd
    """
    if output is not None and (at is not None or width is not None):
        raise click.UsageError("--output draws the whole frame; omit --at and --width")
    frame = open_b2nd(path, verify=False, storage_options=storage_options)
    if output is not None:
        _save(frame, by, output)
        click.echo(safe(str(output)))
        return
    if not frame.nchunks:
        click.echo(safe(f"{frame.path}: no chunks"))
        return
    # only headers have the codecs, and the sizes of a sparse frame
    all_of_them = by == "codec" or (by in ("cbytes", "ratio") and not frame.contiguous)
    reference = reference_of(frame)
    table = chunk_table(reference, None if all_of_them else _MOST_HEADERS)
    values = chunk_values(frame, by, table)
    chosen = _chosen(values.codes.shape, at)
    console = Console()
    rows = max(4, console.height - _TEXT_LINES) if console.is_terminal else _ROWS
    columns = width or console.width
    layout = layout_for(values.codes[chosen].shape, rows, columns, doubled=True)
    codes, bounds = picture_of(values, layout, chosen)
    click.echo(safe(f"{frame.path}: {lengths_text(values.codes.shape)} chunks"))
    click.echo(safe(layout_text(axis_names(reference), layout, chosen)))
    cells = _symbols(values, console, wide=2 if codes.shape[1] * 2 <= columns else 1)
    lines = ["".join(cells[code] for code in row) for row in codes.tolist()]
    lines += _legend(values, codes, bounds, _symbols(values, console))
    for line in lines:
        click.echo(line, color=bool(console.color_system) and not console.no_color)


def _save(frame: Frame, by: str, output: Path) -> None:
    require("plot", "matplotlib").use("agg")
    from b2nd_dask.edges.plot.chunks import chunk_map

    figure: Any = chunk_map(frame, by).figure  # type: ignore[arg-type]
    figure.savefig(output, format=output.suffix[1:] or "png", dpi=150, bbox_inches="tight")


def _chosen(grid: tuple[int, ...], at: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Check the positions along the first axes; rows and columns have none."""
    given = () if at is None else at if isinstance(at, tuple) else (at,)
    left_out = max(0, len(grid) - 2)
    if len(given) > left_out:
        raise ValueError(
            f"--at has {len(given)} positions, but the chunk grid has {left_out} axes besides rows "
            "and columns"
        )
    for axis, (position, count) in enumerate(zip(given, grid, strict=False)):
        if not -count <= position < count:
            raise ValueError(f"--at {position}: axis {axis} has {count} chunks")
    return given


def picture_of(
    values: ChunkValues, layout: Layout, at: tuple[int, ...] = ()
) -> tuple[NDArray[np.uint8], tuple[float, float] | None]:
    """Codes of the cells in rows, with levels for numbers, and the bounds of the numbers."""
    above, _ = layout.gap
    codes = layout.kinds(values.codes[at])[above:]
    if values.numbers is None:
        return codes, None
    numbers = layout.means(values.numbers[at])[above:]
    known = np.isfinite(numbers)
    if not known.any():
        return codes, None
    found = numbers[known]
    low, high = float(found.min()), float(found.max())
    if is_logarithmic(values.by, low, high):
        found = np.log(found)
    scaled = (found - found.min()) / max(np.ptp(found), 1e-300)
    most = len(_BLOCKS)
    codes[known] = _LEVELS + np.minimum(scaled * most, most - 1).astype(np.uint8)
    return codes, (low, high)


def _symbols(values: ChunkValues, console: Console, wide: int = 1) -> dict[int, str]:
    """Coloured characters by code, each `wide` times."""
    is_ascii = console.options.ascii_only or os.environ.get("TERM") == "dumb"
    found = {code: (k.ascii if is_ascii else k.block, k.ansi) for code, k in KINDS.items()}
    for number in range(len(values.codecs)):
        found[CODECS + number] = (chr(ord("A") + number % 26), _STYLES[number % len(_STYLES)])
    for level, character in enumerate(_DIGITS if is_ascii else _BLOCKS, _LEVELS):
        found[level] = (character, "blue")
    coloured = {code: click.style(text * wide, fg=fg) for code, (text, fg) in found.items()}
    return coloured | {GAP: " " * wide}


def _legend(
    values: ChunkValues,
    codes: NDArray[np.uint8],
    bounds: tuple[float, float] | None,
    symbols: dict[int, str],
) -> Iterator[str]:
    """Scale of the numbers, then each symbol of the picture with its number of chunks."""
    if bounds is not None:
        low, high = map(values.text, bounds)
        first, last = symbols[_LEVELS], symbols[_LEVELS + len(_BLOCKS) - 1]
        yield f"{first} {low} to {last} {high} {values.unit}"
    for code, text in values.legend(codes):
        yield f"{symbols[code]} {text}"
