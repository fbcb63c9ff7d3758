"""`info`: what frames and stores hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from b2nd_dask.edges.cli.facts import facts_of, facts_of_members
from b2nd_dask.edges.cli.failures import Failures, Verb, as_commands
from b2nd_dask.edges.cli.options import json_option, paths_argument, storage_options
from b2nd_dask.edges.cli.sources import Source, label_of, opened
from b2nd_dask.edges.cli.terminal import print_columns, print_json, print_rows
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.sizes import decimal
from b2nd_dask.storage import printable


@click.command("info", cls=Verb)
@paths_argument
@json_option
@storage_options
@click.pass_context
def info_command(
    context: click.Context,
    paths: tuple[str, ...],
    as_json: bool,
    storage_options: dict[str, Any],
) -> None:
    """Print what the frames at PATHS (files, directories or URLs) hold.

    Of a store of python-blosc2 (.b2z, .b2d, .b2e) its members; PATH/KEY is one of them. Reads
    metadata, and of local frames the headers of chunks, to tell what `compact` would give back.

    \b
    Examples:
      b2nd-dask info rain.b2nd
      b2nd-dask info store.b2z/group/rain
      b2nd-dask info --json *.b2nd | jq '.[].ratio'
    """
    found, failures = [], Failures()
    for number, path in enumerate(paths):
        with failures.noted(path, storage_options):
            shown = opened(path, storage_options)
            if as_json:
                found.append(_facts(shown, path))
                continue
            if number:
                click.echo()
            _print(shown, path, many=len(paths) > 1)
    if as_json:
        print_json(found)
    context.exit(failures.code)


def _facts(shown: Source, path: str) -> dict[str, Any]:
    if isinstance(shown, Frame):
        return facts_of(shown)
    return facts_of_members(shown, label_of(path))


def _print(shown: Source, path: str, *, many: bool) -> None:
    if isinstance(shown, Frame):
        print_rows(_rows(shown))
        return
    if many:
        click.echo(label_of(path))
    if not shown:
        click.echo("no members")
    print_columns((printable(each.key), printable(each.what), _size(each.nbytes)) for each in shown)


def _size(nbytes: int | None) -> str:
    return "" if nbytes is None else decimal(nbytes)


def _rows(frame: Frame) -> Iterator[tuple[str, str]]:
    for name, value in frame.info.items():
        yield name, as_commands(value, "") if name in ("checksums", "superseded") else value
