"""`verify` and `seal` for checksums, `compact` and `staging` for unused space of writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from b2nd_dask.edges.cli.group import FAILED, NO_CHECKSUMS, Failures, Verb, as_commands, safe
from b2nd_dask.edges.cli.shared import (
    files_in,
    frames_at,
    json_option,
    path_argument,
    paths_argument,
    print_json,
    progress,
    storage_options,
)
from b2nd_dask.frame.access import locate, open_b2nd
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.checksums import Verification, lacks_checksums, verify_noting
from b2nd_dask.frame.chunk_table import chunk_table, superseded_in
from b2nd_dask.frame.info import decimal
from b2nd_dask.frame.members.writable import local_frame
from b2nd_dask.frame.upkeep import compact, seal
from b2nd_dask.storage import list_staging, remove_staging

_threads = click.option(
    "--threads", type=click.IntRange(1), help="Default: one for each processor."
)


@click.command("verify", cls=Verb)
@paths_argument
@_threads
@storage_options
def verify_command(
    paths: tuple[str, ...], threads: int | None, storage_options: dict[str, Any]
) -> int:
    """Verify the frames at PATHS (files, directories or URLs) by their checksums.

    Reads them completely, with all arrays of a dataset or store, and lists every damaged chunk.

    Exits with 0 if everything is as written, with 1 if anything is damaged or cannot be read, with
    3 if frames have no valid checksums and nothing else is wrong.

    \b
    Examples:
      b2nd-dask verify rain.b2nd
      b2nd-dask verify archive/*.b2nd > report.txt
    """
    failures = Failures(storage_options)
    for frame in (each for path in paths for each in frames_at(path, storage_options)):
        with failures.noted(frame):
            result = verified(frame, storage_options, threads)
            if lacks_checksums(result):
                failures.code = failures.code or NO_CHECKSUMS
            elif not result.ok:
                failures.code = FAILED
    return failures.code


def verified(path: str, options: Any, threads: int | None = None) -> Verification:
    """Verify a frame; print the result and the damaged chunks."""
    location = locate(path, 0, options)
    with progress(f"verifying {location.label}") as show:
        result = verify_noting(location, show, threads)
    click.echo(safe(as_commands(str(result), result.path)))
    for bad in result.bad:
        click.echo(safe(f"  {bad}"))
    return result


@click.command("seal", cls=Verb)
@path_argument
@_threads
def seal_command(path: str, threads: int | None) -> int:
    """Add checksums to the local frame at PATH, if it has no valid ones.

    For a directory, to all frames in it. Checksums show later damage, not existing damage.

    \b
    Example:
      b2nd-dask seal rain.b2nd
    """
    failures = Failures()
    for frame in files_in(path) or [path]:
        with failures.noted(frame):
            unchanged = "already has checksums; `b2nd-dask verify PATH` verifies them"
            result = "checksums added" if seal(frame, threads=threads) else unchanged
            click.echo(safe(f"{frame}: {result}"))
    return failures.code


@click.command("compact", cls=Verb)
@path_argument
@click.option("--dry-run", is_flag=True, help="Only show how many bytes it would free.")
def compact_command(path: str, dry_run: bool) -> int:
    """Free the space of chunks that updates of the frame at PATH have superseded.

    For a directory, in all frames in it. Meanwhile the disk needs room for a second copy of the
    frame.

    \b
    Examples:
      b2nd-dask compact --dry-run rain.b2nd
      b2nd-dask compact rain.b2nd
    """
    failures, freed = Failures(), 0
    for frame in files_in(path) or [path]:
        with failures.noted(frame):
            freed += (_superseded if dry_run else compact)(frame)
    if freed or not failures.code:
        click.echo(
            f"about {decimal(freed)} would be freed" if dry_run else f"{decimal(freed)} freed"
        )
    return failures.code


def _superseded(path: str) -> int:
    """Estimate the bytes that `compact` would free; reads the headers of all chunks."""
    # raises the errors of `compact`
    local_frame(path, "are compacted")
    reference = reference_of(open_b2nd(path, verify=False))
    nbytes = superseded_in(reference, chunk_table(reference))
    if nbytes is None:
        raise click.ClickException(safe(f"{path}: what `compact` would free cannot be determined"))
    return nbytes


@click.command("staging", cls=Verb)
@path_argument
@click.option("--remove", is_flag=True, help="Remove them. A write to PATH in progress fails.")
@click.option("--key", help="Only staging areas with this key.")
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
    listed = list_staging(path, storage_options=storage_options)
    found = [info for info in listed if key in (None, info.key)]
    if remove:
        remove_staging(path, key=key, storage_options=storage_options)
    if as_json:
        print_json([asdict(info) | {"removed": remove} for info in found])
        return
    for info in found:
        when = f"{info.modified:%Y-%m-%d %H:%M:%S %Z}" if info.modified else "unknown"
        click.echo(safe(f"{info.key}  {decimal(info.nbytes)}  {when}  {info.path}"))
    if not found:
        click.echo("nothing is staged" + (f" with the key {key}" if key and listed else ""))
    elif remove:
        click.echo(f"{len(found)} removed")
