"""`compact` and `staging`: space that updates and interrupted writes have left."""

from __future__ import annotations

from typing import Any

import click

from b2nd_dask.edges.cli.failures import Verb, safe
from b2nd_dask.edges.cli.options import json_option, path_argument, storage_options
from b2nd_dask.edges.cli.sources import files_in
from b2nd_dask.edges.cli.terminal import print_json
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.chunk_table import chunk_table, superseded_in
from b2nd_dask.frame.compact import compact
from b2nd_dask.frame.members.writable import frame_to_change
from b2nd_dask.frame.sizes import decimal
from b2nd_dask.storage import StagingInfo, list_staging, remove_staging


@click.command("compact", cls=Verb)
@path_argument
@click.option("--dry-run", is_flag=True, help="Say what it would give back, and change nothing.")
def compact_command(path: str, dry_run: bool) -> None:
    """Give back the space of chunks that updates of the frame at PATH have superseded.

    Of a directory, of all frames in it. The disk needs room for a second copy of the frame until
    it is done.

    \b
    Examples:
      b2nd-dask compact --dry-run rain.b2nd
      b2nd-dask compact rain.b2nd
    """
    frames = files_in(path) or [path]
    if dry_run:
        click.echo(f"about {decimal(sum(map(_superseded, frames)))} would be given back")
    else:
        click.echo(f"{decimal(sum(map(compact, frames)))} given back")


def _superseded(path: str) -> int:
    """About what `compact` would give back; the headers of all chunks are read."""
    # the same errors as of what would be done
    label = frame_to_change(path).label
    reference = reference_of(open_b2nd(path, verify=False))
    nbytes = superseded_in(reference, chunk_table(reference))
    if nbytes is None:
        raise click.ClickException(f"{label}: only frames in local files are compacted")
    return nbytes


@click.command("staging", cls=Verb)
@path_argument
@click.option("--remove", is_flag=True, help="Remove it. A write that is under way there fails.")
@click.option("--key", help="Only what has this key.")
@json_option
@storage_options
def staging_command(
    path: str, remove: bool, key: str | None, as_json: bool, storage_options: dict[str, Any]
) -> None:
    """List the staging areas that interrupted writes to PATH have left, beside it and in it.

    One line for each: key, size, time of the last change, path.

    \b
    Examples:
      b2nd-dask staging rain.b2nd
      b2nd-dask staging rain.b2nd --remove
    """
    places = {
        each: list_staging(each, storage_options=storage_options)
        for each in (path, *files_in(path))
    }
    listed = [info for each in places.values() for info in each]
    if remove:
        # where there is none of the key, the path itself says so
        having = [each for each, infos in places.items() if key in {None, *_keys(infos)}]
        for each in having or [path]:
            remove_staging(each, key=key, storage_options=storage_options)
    found = [info for info in listed if key in (None, info.key)]
    if as_json:
        print_json([_facts(info) | {"removed": remove} for info in found])
        return
    for info in found:
        when = f"{info.modified:%Y-%m-%d %H:%M:%S}" if info.modified else "unknown"
        click.echo(safe(f"{info.key}  {decimal(info.nbytes)}  {when}  {info.path}"))
    if not found:
        click.echo("nothing is staged" + (f" with the key {key}" if key and listed else ""))
    elif remove:
        click.echo(f"{len(found)} removed")


def _keys(infos: list[StagingInfo]) -> set[str]:
    return {info.key for info in infos}


def _facts(info: StagingInfo) -> dict[str, Any]:
    return {
        "key": info.key,
        "nbytes": info.nbytes,
        "modified": info.modified.isoformat() if info.modified else None,
        "path": info.path,
    }
