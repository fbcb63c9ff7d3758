"""The command line: arguments to calls, results to tables."""

from __future__ import annotations

import functools
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
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
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.compact import compact
from b2nd_dask.frame.verify import seal, verify
from b2nd_dask.storage import Location, Secrets, list_staging, remove_staging

#: Exit codes of `verify`; click uses 2 for wrong arguments.
_DAMAGED, _UNKNOWN = 1, 3

_KIND_NAMES = {
    ChunkKind.STORED: "stored",
    ChunkKind.ZEROS: "zeros",
    ChunkKind.NAN: "NaN",
    ChunkKind.UNINIT: "never written",
}

_CHECKSUMS = {
    ChecksumState.VALID: "present (not checked: b2nd-dask verify)",
    ChecksumState.ABSENT: "absent: {}",
    ChecksumState.DAMAGED: "damaged: {}",
}

_VALUES = reprlib.Repr()
_VALUES.maxstring = _VALUES.maxother = 200
_VALUES.maxlist = _VALUES.maxdict = 20


def _option_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """Storage options out of texts such as ``anon=true``."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            # the value may be a password: it is not shown
            raise click.BadParameter("KEY=VALUE is expected", context, parameter)
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


_storage_options = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option_pairs,
    help="For the fsspec file system of a URL; JSON or text, such as anon=true. Repeatable.",
)


#: How messages of the package name what is called otherwise here.
_SPELLINGS = {
    "storage_options={'anon': True}": "--storage-option anon=true",
    "storage_options are for remote stores": "--storage-option is for remote stores",
    "list_staging lists": "`b2nd-dask staging PATH` lists",
}


def _told(error: Exception, path: str | None, options: Mapping[str, Any] | None = None) -> str:
    """One message for people: what failed, and where."""
    text = str(error) or type(error).__name__
    for python, shell in _SPELLINGS.items():
        text = text.replace(python, shell)
    if path is None:
        return text
    try:
        location = Location.of(path)
    except ValueError:
        # the error is that it is no place, and says so without showing it
        return text
    if location.is_url:
        text = Secrets(path, options).hide(text)
    return text if path in text or location.label in text else f"{location.label}: {text}"


def _reported(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command fail with a message, not with a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - file systems have trees of their own
            message = _told(error, kwargs.get("path"), kwargs.get("storage_options"))
        else:
            return
        # outside of the except clause, so that the original is not shown with it
        raise click.ClickException(message)

    return run


@click.group()
@click.version_option(__version__, prog_name="b2nd-dask")
def main() -> None:
    """Blosc2 array frames: what they hold, checksums, what writes left behind, and a demo."""


@main.command()
@click.argument("path")
@_storage_options
@_reported
def info(path: str, storage_options: dict[str, Any]) -> None:
    """Print what the frame at PATH (a file, a directory or a URL) holds.

    Reads its metadata, no chunk.
    """
    # says itself what is damaged
    frame = open_b2nd(path, verify=False, storage_options=storage_options)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in describe(frame):
        # Text, because rich takes brackets in a str for markup.
        table.add_row(Text(name, "bold"), Text(value))
    Console().print(table)


@main.command("verify")
@click.argument("paths", nargs=-1, required=True)
@click.option("--threads", type=click.IntRange(1), help="Default: one for each processor.")
@_storage_options
@click.pass_context
def verify_frames(
    context: click.Context,
    paths: tuple[str, ...],
    threads: int | None,
    storage_options: dict[str, Any],
) -> None:
    """Check the frames at PATHS (files, directories or URLs) against their checksums.

    Reads all of them and lists every damaged chunk. Exits with 0 if all is as it was written, with
    1 if anything is damaged or cannot be read, with 3 if frames have no valid checksums and nothing
    else is wrong.
    """
    worst = 0
    for path in paths:
        try:
            result = verify(path, threads=threads, storage_options=storage_options)
        except Exception as error:  # noqa: BLE001 - file systems have trees of their own
            click.echo(f"Error: {_told(error, path, storage_options)}", err=True)
            worst = _DAMAGED
            continue
        click.echo(str(result))
        for bad in result.bad:
            click.echo(f"  {bad}")
        if not result.ok and worst != _DAMAGED:
            unknown = result.checksum_state is ChecksumState.ABSENT and not result.bad
            worst = _UNKNOWN if unknown else _DAMAGED
    context.exit(worst)


@main.command("seal")
@click.argument("path")
@click.option("--threads", type=click.IntRange(1), help="Default: one for each processor.")
@_reported
def seal_frame(path: str, threads: int | None) -> None:
    """Add checksums to the local frame at PATH, if it has no valid ones.

    They tell of later damage, not of damage that is there already.
    """
    if seal(path, threads=threads):
        click.echo(f"{path}: sealed")
    else:
        click.echo(f"{path}: already has checksums: left alone; `b2nd-dask verify` checks them")


@main.command()
@click.argument("path")
@click.option("--remove", is_flag=True, help="Remove it. A write that is under way there fails.")
@click.option("--key", help="Only what has this key.")
@_storage_options
@_reported
def staging(path: str, remove: bool, key: str | None, storage_options: dict[str, Any]) -> None:
    """List what interrupted writes to the frame at PATH have left beside it.

    One line for each: key, size, time of the last change, place.
    """
    listed = (
        remove_staging(path, key=key, storage_options=storage_options)
        if remove
        else list_staging(path, storage_options=storage_options)
    )
    found = [info for info in listed if key in (None, info.key)]
    for info in found:
        when = f"{info.modified:%Y-%m-%d %H:%M:%S}" if info.modified else "unknown"
        click.echo(f"{info.key}  {decimal(info.nbytes)}  {when}  {info.place}")
    if not found:
        click.echo("nothing is staged" + (f" with the key {key}" if key and listed else ""))
    elif remove:
        click.echo(f"{len(found)} removed")


@main.command("compact")
@click.argument("path")
@_reported
def compact_frame(path: str) -> None:
    """Give back the space of chunks that updates of the frame at PATH have superseded."""
    click.echo(f"{decimal(compact(path))} given back")


@main.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Folder for the frame and the picture.",
)
@click.option("--force", is_flag=True, help="Make the frame anew if it is there already.")
@_reported
def demo(output: Path, force: bool) -> None:
    """Compute how much of the Earth is land, out of core, from the real global land mask.

    Needs the extra "demo": global-land-mask and matplotlib.
    """
    # Here, because it loads dask.array, which `info` and `--help` do without.
    from b2nd_dask.edges.demo import run_demo

    run_demo(output.expanduser(), force=force, console=Console(highlight=False))


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
    yield "layout", "contiguous" if frame.contiguous else "sparse"
    how = frame.cparams
    filters = [name for name in map(_name_of, how.filters) if name != "nofilter"]
    yield "codec", f"{_name_of(how.codec)}, level {how.clevel}"
    yield "filters", ", ".join(filters) or "none"
    integrity = frame.parsed.integrity
    yield "checksums", _CHECKSUMS[integrity.checksum_state].format(integrity.reason)
    for title, layer in (("metalayer", frame.meta), ("vlmeta", frame.vlmeta)):
        for name in layer:
            yield f"{title} {name!r}", _value(layer, name)


def _name_of(choice: Any) -> str:
    """Of a codec or filter; its number where python-blosc2 has no name for it."""
    return choice.name.lower() if isinstance(choice, Enum) else f"number {choice}"


def _lengths(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths)) or "0-d"


def _kind_counts(kinds: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[str]:
    # of very many chunks that are all alike, one says all
    alike = kinds.size > 0 and not any(kinds.strides)
    looked_at = kinds.reshape(-1)[:1] if alike else kinds
    for kind, name in _KIND_NAMES.items():
        count = np.count_nonzero(looked_at == kind) * (kinds.size if alike else 1)
        if count:
            yield f"{count} {name}"


def _value(layer: Mapping[str, Any], name: str) -> str:
    try:
        return _VALUES.repr(layer[name])
    except B2ndError as error:
        return f"(cannot be shown: {error.problem})"
