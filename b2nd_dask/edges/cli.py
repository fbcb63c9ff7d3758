"""The command line: arguments to calls, results to tables."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from b2nd_dask._version import __version__
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.compact import compact
from b2nd_dask.frame.members.listing import list_members
from b2nd_dask.frame.verify import seal, verify
from b2nd_dask.storage import (
    Location,
    Secrets,
    list_staging,
    printable,
    remove_staging,
    split_store,
)

#: Exit codes of `verify`; click uses 2 for wrong arguments.
_DAMAGED, _UNKNOWN = 1, 3


def _option_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """Storage options out of texts such as ``anon=true``."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            # the value may be a password: it is not shown
            raise click.BadParameter("give KEY=VALUE, such as anon=true", context, parameter)
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


#: Python in messages of the package, and how the command line spells the same.
_SPELLINGS = (
    (re.compile(r"storage_options=\{'anon': True\}"), "--storage-option anon=true"),
    (re.compile(r"\bstorage_options are\b"), "--storage-option is"),
    (re.compile(r"\bstorage_options\b=?"), "--storage-option"),
    (re.compile(r"\bcomponent=KEY reads\b"), "PATH/KEY is"),
    (re.compile(r"\bcomponent=(?=')"), "KEY "),
    (re.compile(r"`?\blist_staging\b`?"), "`b2nd-dask staging PATH`"),
    (re.compile(r"`?\bremove_staging\b`?"), "`b2nd-dask staging PATH --remove`"),
    (re.compile(r"`?\bb2nd_dask\.(seal|verify|compact)\b`?"), r"`b2nd-dask \1 PATH`"),
)


def _as_commands(text: str, path: str) -> str:
    """Spell Python in a message as commands and options, except in the path."""
    parts = text.split(path) if path else [text]
    for python, shell in _SPELLINGS:
        parts = [python.sub(shell, part) for part in parts]
    return path.join(parts)


def _message(error: Exception, path: str | None, options: Mapping[str, Any] | None = None) -> str:
    """One message: what failed, in which file, with options as the command line spells them."""
    text = str(error) or type(error).__name__
    text = _as_commands(text, path or "")
    if path is None:
        return text
    try:
        location = Location.of(path)
        store = Location.of(split_store(path)[0])
    except ValueError:
        # the error says that it is no path or URL, and does not show it
        return text
    if location.is_url:
        text = Secrets(path, options).hide(text)
    named = any(name in text for name in (path, location.label, store.label))
    return text if named else f"{location.label}: {text}"


def _reported(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command, so that it fails with a message, not with a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - file systems have trees of their own
            message = _message(error, kwargs.get("path"), kwargs.get("storage_options"))
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

    Of a store of python-blosc2 (.b2z, .b2d, .b2e) its members; PATH/KEY is one of them. Reads
    metadata, no chunk.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    try:
        # says itself what is damaged
        frame = open_b2nd(path, verify=False, storage_options=storage_options)
    except (B2ndError, FileNotFoundError):
        is_member = split_store(path)[1] is not None
        location = Location.of(path, storage_options=storage_options)
        members = None if is_member else list_members(location)
        if members is None:
            raise
        for member in members:
            size = "" if member.nbytes is None else decimal(member.nbytes)
            key, what = printable(member.key), printable(member.what)
            table.add_row(Text(key, "bold"), Text(what), Text(size))
        Console().print(table if members else "no members")
        return
    for name, value in frame.info.items():
        shown = _as_commands(value, "") if name == "checksums" else value
        # Text, because rich takes brackets in a str for markup.
        table.add_row(Text(name, "bold"), Text(shown))
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
    """Verify the frames at PATHS (files, directories or URLs) by their checksums.

    Reads all of them and lists every damaged chunk. Exits with 0 if all is as it was written, with
    1 if anything is damaged or cannot be read, with 3 if frames have no valid checksums and nothing
    else is wrong.
    """
    worst = 0
    for path in paths:
        try:
            result = verify(path, threads=threads, storage_options=storage_options)
        except Exception as error:  # noqa: BLE001 - file systems have trees of their own
            click.echo(f"Error: {_message(error, path, storage_options)}", err=True)
            worst = _DAMAGED
            continue
        click.echo(_as_commands(str(result), result.path))
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

    They show later damage, not damage that is there already.
    """
    if seal(path, threads=threads):
        click.echo(f"{path}: checksums added")
    else:
        click.echo(f"{path}: already has checksums; `b2nd-dask verify PATH` verifies them")


@main.command()
@click.argument("path")
@click.option("--remove", is_flag=True, help="Remove it. A write that is under way there fails.")
@click.option("--key", help="Only what has this key.")
@_storage_options
@_reported
def staging(path: str, remove: bool, key: str | None, storage_options: dict[str, Any]) -> None:
    """List the staging areas that interrupted writes to the frame at PATH have left beside it.

    One line for each: key, size, time of the last change, path.
    """
    listed = (
        remove_staging(path, key=key, storage_options=storage_options)
        if remove
        else list_staging(path, storage_options=storage_options)
    )
    found = [info for info in listed if key in (None, info.key)]
    for info in found:
        when = f"{info.modified:%Y-%m-%d %H:%M:%S}" if info.modified else "unknown"
        click.echo(f"{info.key}  {decimal(info.nbytes)}  {when}  {info.path}")
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
