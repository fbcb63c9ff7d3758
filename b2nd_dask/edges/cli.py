"""The command line: arguments to calls, results to tables."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from b2nd_dask._version import __version__
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import Trust
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.compact import compact
from b2nd_dask.frame.source import Frame
from b2nd_dask.frame.verify import seal, verify
from b2nd_dask.storage import list_staging, remove_staging

#: Exit codes of `verify`; click uses 2 for wrong arguments.
_DAMAGED, _UNKNOWN = 1, 3

_KIND_NAMES = {
    ChunkKind.STORED: "stored",
    ChunkKind.ZEROS: "zeros",
    ChunkKind.NAN: "NaN",
    ChunkKind.UNINIT: "never written",
}

_VALUES = reprlib.Repr()
_VALUES.maxstring = _VALUES.maxother = 200
_VALUES.maxlist = _VALUES.maxdict = 20


@click.group()
@click.version_option(__version__, prog_name="b2nd-dask")
def main() -> None:
    """Blosc2 array frames: what they hold, and a demo of computing on one."""


@main.command()
@click.argument("path")
def info(path: str) -> None:
    """Print what the frame at PATH (a file, a directory or a URL) holds.

    Reads its metadata, no chunk.
    """
    try:
        # says itself what is damaged
        frame = open_b2nd(path, verify=False)
    except (B2ndError, OSError) as error:
        raise click.ClickException(str(error)) from error
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in describe(frame):
        # Text, because rich takes brackets in a str for markup.
        table.add_row(Text(name, "bold"), Text(value))
    Console().print(table)


@main.command("verify")
@click.argument("paths", nargs=-1, required=True)
@click.option("--threads", type=click.IntRange(1), help="Default: one for each processor.")
@click.pass_context
def verify_frames(context: click.Context, paths: tuple[str, ...], threads: int | None) -> None:
    """Check the frames at PATHS (files, directories or URLs) against their checksums.

    Reads all of them and lists every damaged chunk. Exits with 0 if all is as it was written, with
    1 if anything is damaged or cannot be read, with 3 if frames have no valid checksums and nothing
    else is wrong.
    """
    worst = 0
    for path in paths:
        try:
            result = verify(path, threads=threads)
        except (B2ndError, OSError) as error:
            click.echo(f"Error: {error}", err=True)
            worst = _DAMAGED
            continue
        click.echo(str(result))
        for bad in result.bad:
            click.echo(f"  {bad}")
        if not result.ok and worst != _DAMAGED:
            worst = _UNKNOWN if result.trust is Trust.ABSENT else _DAMAGED
    context.exit(worst)


@main.command("seal")
@click.argument("path")
@click.option("--threads", type=click.IntRange(1), help="Default: one for each processor.")
def seal_frame(path: str, threads: int | None) -> None:
    """Add checksums to the local frame at PATH, if it has no valid ones.

    They tell of later damage, not of damage that is there already.
    """
    try:
        seal(path, threads=threads)
    except (B2ndError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{path}: sealed")


@main.command()
@click.argument("path")
@click.option("--remove", is_flag=True, help="Remove it. A write that is under way there fails.")
@click.option("--key", help="Only what has this key.")
def staging(path: str, remove: bool, key: str | None) -> None:
    """List what interrupted writes to the frame at PATH have left beside it."""
    try:
        found = remove_staging(path, key=key) if remove else list_staging(path)
    except (B2ndError, OSError) as error:
        raise click.ClickException(str(error)) from error
    table = Table(box=None, pad_edge=False)
    for name in ("key", "size", "modified", "place"):
        table.add_column(name, overflow="fold")
    for info in found:
        if key in (None, info.key):
            when = f"{info.modified:%Y-%m-%d %H:%M:%S}" if info.modified else "unknown"
            table.add_row(info.key, decimal(info.nbytes), when, Text(info.place))
    console = Console()
    console.print(table if found else "nothing is staged")
    if remove and found:
        console.print(f"{len(found)} removed")


@main.command("compact")
@click.argument("path", type=click.Path(exists=True))
def compact_frame(path: str) -> None:
    """Give back the space of chunks that updates of the frame at PATH have superseded."""
    try:
        given_back = compact(path)
    except (B2ndError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(f"{decimal(given_back)} given back")


@main.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Folder for the frame and the picture.",
)
@click.option("--force", is_flag=True, help="Make the frame anew if it is there already.")
def demo(output: Path, force: bool) -> None:
    """Compute how much of the Earth is land, out of core, from the real global land mask.

    Needs the extra "demo": global-land-mask and matplotlib.
    """
    # Here, because it loads dask.array, which `info` and `--help` do without.
    from b2nd_dask.edges.demo import DemoUnavailableError, run_demo

    try:
        run_demo(output, force=force, console=Console(highlight=False))
    except (DemoUnavailableError, B2ndError, OSError) as error:
        raise click.ClickException(str(error)) from error


def describe(frame: Frame) -> Iterator[tuple[str, str]]:
    """Describe a frame in rows of a name and a text.

    Parameters
    ----------
    frame : Frame
        The frame; only its metadata is used.

    Yields
    ------
    tuple of str
        Name and text.
    """
    kinds = frame.chunk_kinds()
    yield "shape", _lengths(frame.shape)
    yield "dtype", str(frame.dtype)
    yield "chunks", f"{_lengths(frame.chunks)}, in a grid of {_lengths(kinds.shape)}"
    yield "blocks", _lengths(frame.blocks)
    yield "size", f"{decimal(frame.nbytes)} as an array, {decimal(frame.cbytes)} compressed"
    yield "chunk kinds", ", ".join(_kind_counts(kinds)) or "no chunks"
    integrity = frame.parsed.integrity
    yield "checksums", ": ".join(filter(None, [integrity.trust.value, integrity.reason]))
    for title, layer in (("metalayer", frame.meta), ("vlmeta", frame.vlmeta)):
        for name in layer:
            yield f"{title} {name!r}", _value(layer, name)


def _lengths(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths)) or "0-d"


def _kind_counts(kinds: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[str]:
    for kind, name in _KIND_NAMES.items():
        count = np.count_nonzero(kinds == kind)
        if count:
            yield f"{count} {name}"


def _value(layer: Mapping[str, Any], name: str) -> str:
    try:
        return _VALUES.repr(layer[name])
    except B2ndError as error:
        return f"(cannot be shown: {error.problem})"
