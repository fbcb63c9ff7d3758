"""`stats`: minimum, maximum, mean of arrays, from statistics in frames or out of core."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import click
import dask
import dask.array as da
import numpy as np
from dask.base import compute as compute_together
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import NDArray

from b2nd_dask.edges.cli.group import Failures, Verb, safe
from b2nd_dask.edges.cli.shared import (
    files_in,
    frames_at,
    json_option,
    lengths,
    listed,
    paths_argument,
    print_columns,
    print_json,
    progress,
    storage_options,
)
from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.labels import MISSING
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.info import decimal, lengths_text, packing_of, records_of
from b2nd_dask.frame.upkeep import add_stats
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.resources import tasks_shown
from b2nd_dask.storage import Location

#: Bytes of elements per task; small because narrow elements become floats of eight bytes.
_BLOCK = "16MiB"

#: Kinds of dtypes that have an order, that have means, and that have NaN or NaT.
_ORDERED, _AVERAGED, _MISSING = "biufmM", "biufc", "fcmM"

_NAMES = ("count", "nan", "zeros", "min", "max", "mean", "std")
_HEAD = ("count", "NaN", "zeros", "min", "max", "mean", "std")


@click.command("stats", cls=Verb)
@paths_argument
@click.option(
    "--axis",
    type=lengths,
    metavar="N,...",
    help="Axes to reduce, such as 0 or 0,-1; all by default. Reads the elements.",
)
@click.option("--read", is_flag=True, help="Read the elements, also for the standard deviation.")
@click.option("--add", is_flag=True, help="First add statistics to local frames that have none.")
@json_option
@storage_options
def stats_command(
    paths: tuple[str, ...],
    axis: int | tuple[int, ...] | None,
    read: bool,
    add: bool,
    as_json: bool,
    storage_options: dict[str, Any],
) -> int:
    """Minimum, maximum and mean of the arrays at PATHS, and of each array in a store or directory.

    Frames with statistics of all their chunks (to_b2nd(..., stats=True), or --add) are not read.
    Other frames are read once: every chunk with data, verified if it has a checksum. This also
    gives the standard deviation. NaN and NaT are counted and otherwise ignored. Packed numbers
    (scale_factor, _FillValue) are shown as stored; xarray reads other values.

    \b
    Examples:
      b2nd-dask stats rain.b2nd
      b2nd-dask stats --add archive/*.b2nd
      b2nd-dask stats --axis 0,1 era5.b2nd
      b2nd-dask stats --json store.b2z | jq '.[] | [.path, .mean]'
    """
    found, failures = [], Failures(storage_options)
    for path in paths:
        with failures.noted(path):
            local = {Location.of(each).label for each in files_in(path)} if add else set()
            if add and not local:
                add_stats(path)
            for name in frames_at(path, storage_options):
                with failures.noted(name):
                    frame = open_b2nd(name, storage_options=storage_options)
                    if name != path and frame.dtype.kind not in _ORDERED + _AVERAGED:
                        click.echo(safe(f"{frame.path}: {frame.dtype}, skipped"), err=True)
                        continue
                    if frame.path in local:
                        _add(frame.path)
                        frame = open_b2nd(frame.path)
                    found.append(_described(frame, axis, read=read))
                    if not as_json:
                        _print(found[-1])
    if as_json:
        print_json(found)
    return failures.code


def _add(path: str) -> None:
    """Add statistics to a frame of a directory; note a dtype without them."""
    try:
        add_stats(path)
    except TypeError as error:
        click.echo(safe(f"{path}: {error}"), err=True)


def _described(frame: Frame, axis: int | tuple[int, ...] | None, *, read: bool) -> dict[str, Any]:
    axes = kept = None
    if axis is not None:
        axes = tuple(sorted(normalize_axis_tuple(axis, frame.ndim, "--axis")))
        kept = [n for n in range(frame.ndim) if n not in axes]
    recorded = None if read or axes is not None else _recorded(frame)
    found = recorded or _read(frame, axes)
    return {
        "path": frame.path,
        "shape": frame.shape,
        "dtype": frame.dtype,
        "axes": axes,
        "kept_axes": kept,
        **{name: listed(found.get(name)) for name in _NAMES},
        "packing": packing_of(reference_of(frame)),
        "source": "records" if recorded else "elements",
        "records": records_of(reference_of(frame)),
    }


def _recorded(frame: Frame) -> dict[str, Any] | None:
    """Results from the frame's statistics, without "std"; None if the statistics are incomplete."""
    stats = frame.stats
    if stats is None or stats.nans is None or stats.nonzeros is None:
        return None
    count = stats.size - stats.nans
    # dates have no mean, as in `computed`
    has_mean = frame.dtype.kind not in "mM"
    if has_mean and count and stats.mean is None:
        return None
    return {
        "count": count,
        "nan": stats.nans,
        "zeros": stats.size - stats.nonzeros,
        "min": stats.min,
        "max": stats.max,
        "mean": stats.mean if has_mean else None,
    }


def _read(frame: Frame, axes: tuple[int, ...] | None) -> dict[str, Any]:
    with dask.config.set({"array.chunk-size": _BLOCK}):
        x = from_b2nd(frame, chunks="auto")
    with progress(f"computing {frame.path}") as show, tasks_shown(show):
        return computed(x, axes)


def computed(x: da.Array, axis: tuple[int, ...] | None = None) -> dict[str, NDArray[Any]]:
    """Compute the statistics in `_NAMES` that the dtype supports, in one pass over the blocks.

    If all elements are NaN or NaT, all results but the counts are masked.
    """
    kind = x.dtype.kind
    if kind not in _ORDERED + _AVERAGED:
        raise UnsupportedFrameError(
            f"elements are {x.dtype}; only numbers and dates have a minimum or a mean"
        )
    has_nan = kind in _MISSING
    wanted = {"zeros": (x == np.zeros((), x.dtype)).sum(axis)}
    if has_nan:
        wanted["nan"] = da.isnan(x).sum(axis)
    if kind in _ORDERED and x.size:
        wanted |= {"min": da.nanmin(x, axis), "max": da.nanmax(x, axis)}
    if kind in _AVERAGED:
        wide = np.complex128 if kind == "c" else np.float64
        mean, std = (da.nanmean, da.nanstd) if has_nan else (da.mean, da.std)
        wanted |= {"mean": mean(x, axis, dtype=wide), "std": std(x, axis, dtype=wide)}
    with warnings.catch_warnings():
        # dask's threads warn about infinities and about blocks with only NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        (found,) = compute_together(wanted, scheduler="threads")
    size = math.prod(x.shape if axis is None else (x.shape[number] for number in axis))
    nan = np.asarray(found.pop("nan", np.zeros_like(found["zeros"])))
    counts = {"count": size - nan, "nan": nan, "zeros": found.pop("zeros")}
    if "std" in found:
        # for complex numbers dask gives the root of the variance as a complex number
        found["std"] = np.real(found["std"])
    none = counts["count"] == 0
    return counts | {name: np.ma.masked_array(value, mask=none) for name, value in found.items()}


def _print(found: dict[str, Any]) -> None:
    stored = f"{lengths_text(found['shape'])}, {found['dtype']}"
    if found["packing"]:
        said = ", ".join(f"{name} {value}" for name, value in found["packing"].items())
        stored += f", as stored ({said})"
    click.echo(safe(f"{found['path']}: {stored}"))
    if found["axes"] is None:
        rows = [
            ("  " + head, _text(found[name]) + _remark(found, name))
            for name, head in zip(_NAMES, _HEAD, strict=True)
        ]
        print_columns([*rows, ("  records", _said_of_records(found))])
    else:
        print_columns([("  index", *_HEAD), *_lines(found)])


def _remark(found: dict[str, Any], name: str) -> str:
    """Explain a minimum or maximum that stands for missing elements, and a missing deviation."""
    if name == "std" and found["source"] == "records" and found["mean"] is not None:
        return " (not in the statistics of a frame; --read computes it)"
    if name in ("min", "max"):
        for mark in MISSING:
            if found[name] in np.ravel(found["packing"].get(mark, ())):
                return f" ({mark}: missing elements)"
    return ""


def _said_of_records(found: dict[str, Any]) -> str:
    records = found["records"]
    if not records["chunks"] and records["of"]:
        return "none, the elements were read; --add adds statistics to the frame"
    said = f"{records['chunks']} of {records['of']} chunks, {decimal(records['nbytes'])}"
    return said + ("; the elements were read" if found["source"] == "elements" else "")


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each element of the reduced result."""
    left = [found["shape"][number] for number in found["kept_axes"]]
    if 0 in left:
        return  # an empty list does not have all lengths
    columns = [np.broadcast_to(np.asarray(found[name], object), left) for name in _NAMES]
    for index in np.ndindex(*left):
        yield "  " + ",".join(map(str, index)), *(_text(column[index]) for column in columns)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
