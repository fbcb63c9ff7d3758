"""`verify` and `seal`: damage found by checksums, and checksums added."""

from __future__ import annotations

from typing import Any

import click

from b2nd_dask.edges.cli.failures import (
    FAILED,
    NO_CHECKSUMS,
    Failures,
    Verb,
    as_commands,
    safe,
)
from b2nd_dask.edges.cli.options import (
    path_argument,
    paths_argument,
    storage_options,
    threads_option,
)
from b2nd_dask.edges.cli.sources import files_in, frames_at
from b2nd_dask.edges.cli.terminal import progress
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.verify import seal, verify_noting


@click.command("verify", cls=Verb)
@paths_argument
@threads_option
@storage_options
@click.pass_context
def verify_command(
    context: click.Context,
    paths: tuple[str, ...],
    threads: int | None,
    storage_options: dict[str, Any],
) -> None:
    """Verify the frames at PATHS (files, directories or URLs) by their checksums.

    Reads all of them and lists every damaged chunk. Of a dataset or a store all its arrays.

    Exits with 0 if all is as it was written, with 1 if anything is damaged or cannot be read, with
    3 if frames have no valid checksums and nothing else is wrong.

    \b
    Examples:
      b2nd-dask verify rain.b2nd
      b2nd-dask verify archive/*.b2nd > report.txt
    """
    frames = (each for path in paths for each in frames_at(path, storage_options))
    codes = [_verified(frame, threads, storage_options) for frame in frames]
    context.exit(FAILED if FAILED in codes else max(codes))


def _verified(path: str, threads: int | None, options: dict[str, Any]) -> int:
    """Verify one frame; gives its exit code."""
    failures = Failures()
    with failures.noted(path, options):
        with progress(f"verifying {path}") as show:
            result = verify_noting(path, show, threads=threads, storage_options=options)
        click.echo(safe(as_commands(str(result), result.path)))
        for bad in result.bad:
            click.echo(safe(f"  {bad}"))
        if not result.ok:
            unknown = result.checksum_state is ChecksumState.ABSENT and not result.bad
            failures.code = NO_CHECKSUMS if unknown else FAILED
    return failures.code


@click.command("seal", cls=Verb)
@path_argument
@threads_option
def seal_command(path: str, threads: int | None) -> None:
    """Add checksums to the local frame at PATH, if it has no valid ones.

    Of a directory, to all frames in it. They show later damage, not damage that is there already.

    \b
    Example:
      b2nd-dask seal rain.b2nd
    """
    for frame in files_in(path) or [path]:
        if seal(frame, threads=threads):
            click.echo(safe(f"{frame}: checksums added"))
        else:
            done = f"{frame}: already has checksums; `b2nd-dask verify PATH` verifies them"
            click.echo(safe(done))
