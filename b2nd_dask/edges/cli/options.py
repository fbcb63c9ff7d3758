"""Arguments and options that several commands take."""

from __future__ import annotations

import json
from typing import Any

import click

#: A file, a directory or a URL: completed as paths are, checked by what opens it.
PATH = click.Path(readable=False)

path_argument = click.argument("path", type=PATH)
paths_argument = click.argument("paths", type=PATH, nargs=-1, required=True)
threads_option = click.option(
    "--threads", type=click.IntRange(1), help="Default: one for each processor."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON for programs: sizes in bytes, stable keys."
)


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


storage_options = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option_pairs,
    help="For the fsspec file system of a URL; JSON or text, such as anon=true. Repeatable.",
)


def lengths(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Numbers along each axis, such as ``100,200``, or one for all axes; -1 is the whole axis."""
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: give numbers, such as 100,200", context, parameter
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]
