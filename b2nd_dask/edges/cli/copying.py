"""`copy`, `rechunk` and `convert`: write arrays to another path, out of core."""

from __future__ import annotations

import dataclasses
import errno
import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from b2nd_dask.edges.cli.group import FAILED, Verb, safe
from b2nd_dask.edges.cli.shared import PATH, frames_at, lengths, progress, storage_options
from b2nd_dask.edges.cli.upkeep import verified
from b2nd_dask.edges.convert.convert import FORMATS, convert
from b2nd_dask.edges.convert.shared import label_of
from b2nd_dask.edges.datasets.places import found_at
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.compression import CODECS, FILTERS
from b2nd_dask.format.manifest import MANIFEST
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.info import decimal, lengths_text
from b2nd_dask.graph.resources import tasks_shown
from b2nd_dask.graph.write.rechunk import rechunk
from b2nd_dask.storage import MAIN_MEMBER, Location

_FORMAT = click.Choice(list(FORMATS))
#: gzip is another name of zlib, in HDF5.
_CODECS = click.Choice((*CODECS, "gzip"), case_sensitive=False)
_FILTERS = click.Choice((*FILTERS, "none"), case_sensitive=False)
_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: _Option) -> _Option:
    """Combine several options into one decorator."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


#: Options of all commands here.
_writing = _together(
    click.option("--codec", type=_CODECS, help="Codec; gzip is another name of zlib."),
    click.option("--level", type=click.IntRange(0, 9), help="Compression level."),
    click.option("--filter", "filters", type=_FILTERS, multiple=True, help="Filter; repeatable."),
    click.option("--max-mem", metavar="SIZE", help="Memory for blocks, such as 512MB."),
    click.option("--overwrite", is_flag=True, help="Replace an existing target when complete."),
)

#: Arguments and options of both `copy` and `rechunk`.
_writes = _together(
    click.argument("path", metavar="SOURCE", type=PATH),
    click.argument("target", type=PATH),
    _writing,
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


@click.command("copy", cls=Verb)
@_writes
def copy_command(path: str, target: str, **options: Any) -> int:
    """Copy the frame at SOURCE to TARGET (files, directories or URLs), metadata included.

    Without options of compression, chunks are copied unchanged, not decoded, and verified by the
    checksums of SOURCE, if it has any. TARGET always has checksums, and appears when it is
    complete. A dataset is written as by `convert`: its chunks are compressed again.

    \b
    Examples:
      b2nd-dask copy store.b2z/group/rain rain.b2nd
      b2nd-dask copy --codec zstd --level 9 rain.b2nd archive/rain.b2nd
      b2nd-dask copy --sparse rain.b2nd s3://bucket/rain.b2nd
    """
    return _write(path, target, options)


@click.command("rechunk", cls=Verb)
@_writes
@click.option(
    "--chunks",
    required=True,
    type=lengths,
    metavar="N,...",
    help="Elements of a chunk along each axis; -1 is the whole axis.",
)
@click.option("--blocks", type=lengths, metavar="N,...", help="Elements of a block.")
def rechunk_command(path: str, target: str, **options: Any) -> int:
    """Write the frame at SOURCE to TARGET with other chunks, within a memory limit.

    Compression and layout are those of SOURCE by default. A dataset is written as by `convert`:
    arrays with another number of axes than CHUNKS keep theirs.

    \b
    Examples:
      b2nd-dask rechunk --chunks 8760,10,20 maps.b2nd series.b2nd
      b2nd-dask rechunk --chunks 100,-1,-1 --max-mem 2GB in.b2nd out.b2nd
    """
    return _write(path, target, options)


def _inside(target: str, source: str, suffix: str = ".b2nd") -> str:
    """The target; if it is a folder, the path of the source's name in it, as for `cp`.

    A name without suffix gets the given one.
    """
    if Location.of(target).is_url:
        return target
    folder = Path(target)
    if target.endswith("/") and not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the directory does not exist; make it first", target)
    # only --overwrite replaces a sparse frame or a dataset, which may have no suffix
    is_other = folder.suffix or any((folder / n).exists() for n in (MAIN_MEMBER, MANIFEST))
    if folder.is_dir() and not is_other:
        # the label has no query, which may hold a secret
        name = Path(Location.of(source).label).name
        # a member of a store has no suffix
        return str(folder / (name if Path(name).suffix else f"{name}{suffix}"))
    return target


def _write(path: str, target: str, options: dict[str, Any]) -> int:
    """Write the target, verify it, and print its chunks and sizes; return the exit code."""
    given, contiguous = options["storage_options"], options["contiguous"]
    try:
        source = open_b2nd(path, storage_options=given if Location.of(path).is_url else None)
    except (B2ndError, FileNotFoundError):
        if isinstance(found_at(path, given), Location):
            raise
        return _convert(path, target, options)
    target = _inside(target, path)
    storage = given if Location.of(target).is_url else None
    with progress(f"writing {Location.of(target).label}") as show, tasks_shown(show):
        rechunk(
            source,
            target,
            chunks=options.get("chunks", source.chunks),
            blocks=options.get("blocks"),
            cparams=_cparams(source, _compression_in(options)),
            max_mem=options["max_mem"],
            mode="w" if options["overwrite"] else "w-",
            contiguous=source.contiguous if contiguous is None else contiguous,
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
    return 0 if not options["verify"] or verified(target, storage).ok else FAILED


def _convert(path: str, target: str, options: dict[str, Any]) -> int:
    """Write a dataset as `convert` does, with its statistics; compare it if verified."""
    if options.pop("contiguous") is not None:
        raise click.UsageError("--contiguous and --sparse are for one frame, and this is a dataset")
    target = _inside(target, path, ".b2d")
    if (suffix := Path(target).suffix) not in (".b2d", ".b2z", ""):
        raise click.UsageError(
            "a dataset becomes a .b2d or .b2z; copy one array of it as SOURCE/NAME, or write "
            "another format by `b2nd-dask convert`"
        )
    options["cparams"], options["check"] = _compression_in(options) or None, options.pop("verify")
    given = options["storage_options"]
    frames = (open_b2nd(each, storage_options=given) for each in frames_at(path, given))
    options["stats"] = any(frame.stats is not None for frame in frames)
    options["target_format"] = suffix[1:] or "b2d"
    with progress(f"writing {Location.of(target).label}") as show:
        convert(path, target, source_format="b2d", progress=show, **options)
    click.echo(safe(target))
    return 0


def _compression_in(options: dict[str, Any]) -> dict[str, Any]:
    """Remove codec, level and filters from options; return those given as `cparams`."""
    codec, level, filters = (options.pop(name) for name in ("codec", "level", "filters"))
    found: dict[str, Any] = {} if level is None else {"clevel": level}
    if codec is not None:
        found["codec"] = "zlib" if codec == "gzip" else codec
    if filters:
        found["filters"] = [each for each in filters if each != "none"]
    return found


def _cparams(source: Frame, asked: dict[str, Any]) -> dict[str, Any]:
    """Compression of the source with the user's changes."""
    found = dataclasses.asdict(source.cparams) | asked
    if "codec" in asked:
        found["codec_meta"] = 0
    if "filters" in asked:
        found["filters_meta"] = [0] * len(asked["filters"])
    return found


@click.command("convert", cls=Verb)
@click.argument("path", metavar="SRC", type=PATH)
@click.argument("target", metavar="DST", type=PATH)
@click.option("--from", "source_format", type=_FORMAT, help="Format of SRC; default: its suffix.")
@click.option("--to", "target_format", type=_FORMAT, help="Format of DST; default: its suffix.")
@click.option("--member", metavar="NAME", help="Group or array of SRC; the same as SRC::NAME.")
@click.option("--dtype", help="Dtype of the elements of a Caterva frame, which does not store it.")
@click.option(
    "--chunks",
    type=lengths,
    metavar="N,N,...",
    help="Default: those of SRC; small ones are merged, large ones divided.",
)
@click.option("--blocks", type=lengths, metavar="N,N,...", help="Elements of a frame's block.")
@_writing
@click.option("--stats", is_flag=True, help="Add statistics to the frames.")
@click.option("--skip", is_flag=True, help="Leave out arrays that DST cannot hold.")
@click.option("--check", is_flag=True, help="Compare all elements before DST appears.")
@click.option("--other-files", is_flag=True, help="Also read elements in files that SRC refers to.")
@storage_options
def convert_command(path: str, target: str, **options: Any) -> None:
    """Convert SRC to DST: b2nd, b2d, b2z, zarr, HDF5 / NetCDF-4, npy, npz, and from Caterva.

    The suffixes give the formats. DST has the same dims and attributes; warnings name the metadata
    that it cannot hold, an error the arrays. DST appears when it is complete.

    \b
    Examples:
      b2nd-dask convert rain.zarr rain.b2d
      b2nd-dask convert model.nc::/run1/t2m t2m.b2nd --chunks 24,180,360
      b2nd-dask convert x.npy x.b2nd --check
      b2nd-dask convert archive.b2z archive.nc
    """
    cparams = _compression_in(options) or None
    # whatever the user's filters are: warnings say what is lost
    warnings.simplefilter("default", UserWarning)
    with progress(f"converting {label_of(path)}") as show:
        convert(path, target, cparams=cparams, progress=show, **options)
    click.echo(safe(target))
