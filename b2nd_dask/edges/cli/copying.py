"""`copy` and `rechunk`: a frame written anew at another path, out of core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from b2nd_dask.edges.cli.failures import FAILED, Verb, safe
from b2nd_dask.edges.cli.options import (
    PATH,
    compression_in,
    lengths,
    storage_options,
    writing_options,
)
from b2nd_dask.edges.cli.terminal import progress
from b2nd_dask.edges.progress import tasks_shown
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.info import lengths_text
from b2nd_dask.frame.sizes import decimal
from b2nd_dask.frame.verify import verify_noting
from b2nd_dask.graph.write.rechunk import rechunk
from b2nd_dask.storage import Location


def _writes(command: Callable[..., None]) -> Callable[..., None]:
    """Add what `copy` and `rechunk` share."""
    for option in reversed(
        (
            click.argument("path", metavar="SOURCE", type=PATH),
            click.argument("target", type=PATH),
            writing_options,
            click.option(
                "--contiguous/--sparse",
                default=None,
                help="One file, or a directory with a file for each chunk; as SOURCE by default.",
            ),
            click.option(
                "--verify/--no-verify",
                default=True,
                show_default=True,
                help="Read all of TARGET again, and compare it with its checksums.",
            ),
            storage_options,
        )
    ):
        command = option(command)
    return command


@click.command("copy", cls=Verb)
@_writes
@click.pass_context
def copy_command(context: click.Context, /, path: str, target: str, **options: Any) -> None:
    """Copy the frame at SOURCE to TARGET (files, directories or URLs), metadata included.

    Where no other compression is asked for chunks are copied as they are, not decoded. They are
    verified by the checksums of SOURCE, if it has any; TARGET has checksums in any case, and
    appears at once when it is complete.

    \b
    Examples:
      b2nd-dask copy store.b2z/group/rain rain.b2nd
      b2nd-dask copy --codec zstd --level 9 rain.b2nd archive/rain.b2nd
      b2nd-dask copy --sparse rain.b2nd s3://bucket/rain.b2nd
    """
    _write(context, path, target, None, None, options)


@click.command("rechunk", cls=Verb)
@_writes
@click.option(
    "--chunks",
    required=True,
    callback=lengths,
    metavar="N,...",
    help="Elements of a chunk along each axis; -1 is the whole axis.",
)
@click.option("--blocks", callback=lengths, metavar="N,...", help="Elements of a block.")
@click.pass_context
def rechunk_command(
    context: click.Context,
    /,
    path: str,
    target: str,
    chunks: int | tuple[int, ...],
    blocks: int | tuple[int, ...] | None,
    **options: Any,
) -> None:
    """Write the frame at SOURCE anew at TARGET, with other chunks, within a stated memory.

    Compression and layout are those of SOURCE, unless others are asked for.

    \b
    Examples:
      b2nd-dask rechunk --chunks 8760,10,20 maps.b2nd series.b2nd
      b2nd-dask rechunk --chunks 100,-1,-1 --max-mem 2GB in.b2nd out.b2nd
    """
    _write(context, path, target, chunks, blocks, options)


def _options_for(path: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Storage options are those of URLs."""
    given: dict[str, Any] = options["storage_options"]
    return given if Location.of(path).is_url else None


def _inside(target: str, source: str) -> str:
    """A path in the folder that was named as the target, as `cp` has it."""
    if Location.of(target).is_url:
        return target
    folder = Path(target)
    # a directory with a suffix may be a sparse frame, which is replaced only where that is asked
    if folder.is_dir() and not folder.suffix:
        return str(folder / Path(source.rstrip("/")).name)
    return target


def _write(
    context: click.Context,
    path: str,
    target: str,
    chunks: Any,
    blocks: Any,
    options: dict[str, Any],
) -> None:
    """Write, read back, and say what became of it."""
    source = open_b2nd(path, storage_options=_options_for(path, options))
    target, storage = _inside(target, path), _options_for(target, options)
    with progress(f"writing {target}") as show, tasks_shown(show):
        rechunk(
            source,
            target,
            chunks=source.chunks if chunks is None else chunks,
            blocks=blocks,
            cparams=_cparams(source, compression_in(options)),
            max_mem=options["max_mem"],
            mode="w" if options["overwrite"] else "w-",
            contiguous=source.contiguous
            if options["contiguous"] is None
            else options["contiguous"],
            storage_options=storage,
        )
    written = open_b2nd(target, storage_options=storage)
    click.echo(
        safe(
            f"{written.path}: chunks {lengths_text(written.chunks)}, "
            f"{decimal(written.nbytes)} as an array, {decimal(written.cbytes)} compressed "
            f"({decimal(source.cbytes)} before)"
        )
    )
    if options["verify"]:
        with progress(f"verifying {target}") as show:
            result = verify_noting(target, show, storage_options=storage)
        click.echo(safe(str(result)))
        context.exit(0 if result.ok else FAILED)


def _cparams(source: Frame, asked: dict[str, Any]) -> Any:
    """The compression of the source, with what is asked for instead."""
    if not asked:
        return None
    found = dataclasses.asdict(source.cparams)
    del found["blocksize"], found["typesize"]
    if "codec" in asked:
        found["codec_meta"] = 0
    if "filters" in asked:
        found["filters_meta"] = [0] * len(asked["filters"])
    return found | asked
