"""`plan`: the cost of a read, a reduction or a rechunk, without running it."""

from __future__ import annotations

import dataclasses
import tempfile
import uuid
from pathlib import Path
from typing import Any

import click
import dask.array as da
import numpy as np

from b2nd_dask.edges.cli.group import Verb, safe
from b2nd_dask.edges.cli.shared import (
    json_option,
    lengths,
    path_argument,
    print_json,
    storage_options,
)
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph.plan.plan import plan
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.read.sizes import own_or_auto
from b2nd_dask.graph.write.rechunk import rechunk

_REDUCTIONS = ("sum", "mean", "std", "min", "max", "any", "all")


def _index(text: str) -> tuple[Any, ...]:
    """Parse an index in the syntax of NumPy, such as ``0:100,:,5``."""
    try:
        return tuple(_part(part.strip()) for part in text.strip("[]").split(","))
    except (TypeError, ValueError):
        raise click.BadParameter(
            f"{text!r}: give an index in the syntax of NumPy, such as 0:100,:,5"
        ) from None


def _part(text: str) -> Any:
    if text == "...":
        return ...
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":")))


@click.command("plan", cls=Verb)
@path_argument
@click.option(
    "--slice", "index", type=_index, metavar="INDEX", help="Part to read; all by default."
)
@click.option("--reduce", type=click.Choice(_REDUCTIONS), help="Reduction to compute.")
@click.option("--axis", type=lengths, metavar="N,...", help="Axes to reduce; all by default.")
@click.option("--rechunk", "chunks", type=lengths, metavar="N,...", help="New chunks of a rechunk.")
@click.option("--max-mem", help='Memory of a rechunk, such as "2GB".')
@json_option
@storage_options
def plan_command(
    path: str,
    index: tuple[Any, ...] | None,
    reduce: str | None,
    axis: int | tuple[int, ...] | None,
    chunks: int | tuple[int, ...] | None,
    max_mem: str | None,
    as_json: bool,
    storage_options: dict[str, Any],
) -> None:
    """Estimate chunks, bytes and memory of a read from the frame at PATH. Reads no chunk.

    \b
    Examples:
      b2nd-dask plan --slice 0:24,:,: rain.b2nd
      b2nd-dask plan --reduce mean --axis 0 rain.b2nd
      b2nd-dask plan --rechunk 8760,10,20 --max-mem 2GB rain.b2nd
    """
    frame = open_b2nd(path, storage_options=storage_options)
    if chunks is None:
        if max_mem is not None:
            raise click.UsageError("--max-mem needs --rechunk")
        found = plan(_read(frame, index, reduce, axis))
    elif index is not None or reduce is not None or axis is not None:
        raise click.UsageError("--rechunk is of the whole frame; omit --slice, --reduce, --axis")
    else:
        # no file is made: the write is not computed
        target = Path(tempfile.gettempdir(), f"{uuid.uuid4().hex}.b2nd")
        found = plan(rechunk(frame, target, chunks=chunks, max_mem=max_mem, compute=False))
        named = (dataclasses.replace(each, path="the new frame") for each in found.targets)
        found = dataclasses.replace(found, targets=tuple(named))
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        click.echo(safe(str(found)))


def _read(frame: Frame, index: tuple[Any, ...] | None, reduce: str | None, axis: Any) -> da.Array:
    if axis is not None and reduce is None:
        raise click.UsageError("--axis needs --reduce")
    x: da.Array = from_b2nd(frame, chunks=own_or_auto(frame.nchunks))
    if index is not None:
        x = x[index]
    try:
        found: da.Array = x if reduce is None else getattr(x, reduce)(axis=axis)
    except np.exceptions.AxisError:
        raise
    except (TypeError, IndexError):
        # their texts are about functions of NumPy
        raise TypeError(f"elements of {frame.dtype} have no {reduce}") from None
    return found
