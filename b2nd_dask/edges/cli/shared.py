"""What verbs share: arguments and options, tables on stdout, progress on stderr of a terminal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from b2nd_dask.edges.cli.group import safe

#: A file, a directory or a URL; completed like a path, checked when it is opened.
PATH = click.Path(readable=False)

path_argument = click.argument("path", type=PATH)
paths_argument = click.argument("paths", type=PATH, nargs=-1, required=True)
threads_option = click.option(
    "--threads", type=click.IntRange(1), help="Default: one for each processor."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON for programs: sizes in bytes, stable keys."
)


_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*options: _Option) -> _Option:
    """Combine several options into one decorator."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


#: Options of all commands that write arrays.
writing_options = together(
    click.option("--codec", help="Codec, such as zstd, lz4, blosclz."),
    click.option("--level", type=click.IntRange(0, 9), help="Compression level."),
    click.option(
        "--filter",
        "filters",
        multiple=True,
        help="Filter, such as shuffle, bitshuffle, or none. Repeatable.",
    ),
    click.option("--max-mem", metavar="SIZE", help="Memory for blocks, such as 512MB."),
    click.option("--overwrite", is_flag=True, help="Replace an existing target when complete."),
)


def compression_in(options: dict[str, Any]) -> dict[str, Any]:
    """Remove codec, level and filters from options; return those given as `cparams`."""
    codec, level, filters = (options.pop(name) for name in ("codec", "level", "filters"))
    found: dict[str, Any] = {} if level is None else {"clevel": level}
    if codec is not None:
        found["codec"] = codec
    if filters:
        found["filters"] = [each for each in filters if each.lower() != "none"]
    return found


def _option_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """Parse storage options such as ``anon=true``."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            # the message leaves out the value, which may be a password
            raise click.BadParameter("give KEY=VALUE, such as anon=true", context, parameter)
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


storage_options = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option_pairs,
    help="Option of the fsspec file system of a URL; JSON or text, such as anon=true. Repeatable.",
)


def lengths(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Parse one number per axis, such as ``100,200``, or one number for all axes."""
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: give numbers, such as 100,200", context, parameter
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


#: Seconds between updates of a progress bar.
_BETWEEN = 0.1


def print_columns(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ()) -> None:
    """Print texts in left-aligned columns, with control characters escaped."""
    rows = [tuple(map(safe, row)) for row in ([head, *rows] if head else rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join([first, *others]).rstrip())


def print_json(value: Any) -> None:
    """Print JSON; NaN and infinities become texts, since JSON has no such numbers."""
    click.echo(json.dumps(_plain(value), indent=2, ensure_ascii=True, allow_nan=False))


def listed(values: Any) -> Any:
    """An array as lists for JSON: times and complex numbers as texts, None if masked."""
    found = np.ma.masked_array(values)
    if found.dtype.kind in "mMc":
        found = np.ma.masked_array(found.astype(str).astype(object), np.ma.getmask(found))
    return found.tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.str
    if isinstance(value, np.ndarray | np.generic):
        value = listed(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while the block runs, if stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(escape(safe(what)), total=None)

        shown = 0.0

        def show(done: int, of: int) -> None:
            nonlocal shown
            # limits the updates: there may be millions of calls, one per chunk
            if time.monotonic() > shown + _BETWEEN or done == of:
                shown = time.monotonic()
                bar.update(task, completed=done, total=of)

        yield show
