"""`convert`: one format to another."""

from __future__ import annotations

import warnings
from typing import Any

import click

from b2nd_dask.edges.cli.failures import Verb, safe
from b2nd_dask.edges.cli.options import (
    PATH,
    compression_in,
    lengths,
    storage_options,
    writing_options,
)
from b2nd_dask.edges.cli.terminal import progress
from b2nd_dask.edges.convert.convert import convert
from b2nd_dask.edges.convert.options import FORMATS

_FORMAT = click.Choice(list(FORMATS))


@click.command("convert", cls=Verb)
@click.argument("src", type=PATH)
@click.argument("dst", type=PATH)
@click.option("--from", "source_format", type=_FORMAT, help="Format of SRC; default: its suffix.")
@click.option("--to", "target_format", type=_FORMAT, help="Format of DST; default: its suffix.")
@click.option("--member", metavar="NAME", help="Group or array of SRC; the same as SRC::NAME.")
@click.option("--dtype", help="Of the elements of a frame of Caterva, which stores none.")
@click.option("--chunks", callback=lengths, metavar="N,N,...", help="Default: those of SRC.")
@click.option("--blocks", callback=lengths, metavar="N,N,...", help="Of frames.")
@writing_options
@click.option("--skip", is_flag=True, help="Leave out arrays that DST cannot hold.")
@click.option("--check", is_flag=True, help="Compare all elements before DST appears.")
@click.option("--other-files", is_flag=True, help="Read elements also from files that SRC names.")
@storage_options
def convert_command(src: str, dst: str, **options: Any) -> None:
    """Convert SRC to DST: b2nd, b2d, b2z, zarr, HDF5 / NetCDF-4, npy, npz, and from Caterva.

    The suffixes say the formats. Dims and attributes are kept; what DST cannot hold is named before
    anything is written. DST appears when it is complete.

    \b
    Examples:
      b2nd-dask convert rain.zarr rain.b2d
      b2nd-dask convert model.nc::/run1/t2m t2m.b2nd --chunks 24,180,360
      b2nd-dask convert x.npy x.b2nd --check
      b2nd-dask convert archive.b2z archive.nc
    """
    cparams = compression_in(options) or None
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        with progress(f"converting {src}") as show:
            convert(src, dst, cparams=cparams, progress=show, **options)
    for message in dict.fromkeys(str(each.message) for each in noted):
        click.echo(safe(f"Warning: {message}"), err=True)
    click.echo(safe(dst))
