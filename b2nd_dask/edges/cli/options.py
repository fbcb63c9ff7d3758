"""Arguments and options of several commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

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


_Option = Callable[[Callable[..., None]], Callable[..., None]]


def together(*options: _Option) -> _Option:
    """Combine several options into one decorator."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
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
        found["codec"] = codec.lower()
    if filters:
        names = [each.lower() for each in filters if each.lower() != "none"]
        found["filters"] = names or ["nofilter"]
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
