"""`info`: the contents of frames and stores, as text or JSON; no chunk is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from b2nd_dask.edges.cli.failures import Failures, Verb, as_commands
from b2nd_dask.edges.cli.options import json_option, paths_argument, storage_options
from b2nd_dask.edges.cli.sources import Source, attributes_at, label_of, opened
from b2nd_dask.edges.cli.terminal import print_columns, print_json
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ONE_VALUE, superseded_in
from b2nd_dask.frame.info import choice_name, decimal, dims_of, known_chunks, one_line
from b2nd_dask.storage import printable

#: Most chunks whose headers are read to find those of one value and superseded bytes.
_MOST_HEADERS = 200_000


def records_of(frame: Frame) -> dict[str, int]:
    """Number of chunks with statistics, number of all chunks, and bytes of the statistics."""
    columns = reference_of(frame).parsed.columns
    if columns.entry is None or columns.statistics is None:
        return {"chunks": 0, "of": frame.nchunks, "nbytes": 0}
    known = int(np.count_nonzero(columns.statistics.known))
    return {"chunks": known, "of": frame.nchunks, "nbytes": len(columns.entry)}


def facts_of(frame: Frame) -> dict[str, Any]:
    """Describe a frame: the keys are stable, sizes are bytes."""
    reference = reference_of(frame)
    checksums, dims = reference.parsed.columns.checksums, dims_of(reference)
    table, _ = known_chunks(reference, _MOST_HEADERS)
    how = frame.cparams
    return {
        "path": frame.path,
        "kind": "frame",
        "shape": list(frame.shape),
        "dims": None if dims is None else list(dims),
        "dtype": frame.dtype.str if frame.dtype.names is None else str(frame.dtype),
        "chunks": list(frame.chunks),
        "blocks": list(frame.blocks),
        "chunk_grid": list(table.kinds.shape),
        "nchunks": frame.nchunks,
        "chunk_kinds": {
            **{kind.name.lower(): table.counts.get(kind, 0) for kind in ChunkKind},
            "one_value": table.counts.get(ONE_VALUE, 0),
        },
        "nbytes": frame.nbytes,
        "cbytes": frame.cbytes,
        "ratio": frame.cratio if frame.cbytes else None,
        "superseded_nbytes": superseded_in(reference, table),
        "layout": "contiguous" if frame.contiguous else "sparse",
        "codec": choice_name(how.codec),
        "clevel": int(how.clevel),
        "filters": [name for name in map(choice_name, how.filters) if name != "nofilter"],
        "checksums": {
            # "present", not "valid": only `verify` compares them with the chunks
            "state": "present" if checksums.state is ChecksumState.VALID else checksums.state.value,
            "reason": checksums.reason or None,
        },
        "statistics": records_of(frame),
        "metalayers": _values(frame.meta),
        "attributes": _values(frame.attrs),
    }


def _values(layer: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in layer:
        try:
            found[name] = layer[name]
        except B2ndError as error:
            found[name] = f"(cannot be shown: {error.problem})"
    return found


@click.command("info", cls=Verb)
@paths_argument
@json_option
@storage_options
def info_command(paths: tuple[str, ...], as_json: bool, storage_options: dict[str, Any]) -> int:
    """Describe the frames at PATHS (files, directories or URLs).

    For a dataset or a store of python-blosc2 (.b2z, .b2d, .b2e), list its members and attributes;
    PATH/KEY is one member. Reads metadata and, to estimate the bytes that `compact` would free, the
    chunk headers of local frames.

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
            attributes: dict[str, Any] = {}
            if not isinstance(shown, Frame):
                with failures.noted(path, storage_options):
                    attributes = attributes_at(path, storage_options)
            if as_json:
                found.append(_facts(shown, path, attributes))
                continue
            if number:
                click.echo()
            _print(shown, path, attributes, many=len(paths) > 1)
    if as_json:
        print_json(found)
    return failures.code


def _facts(shown: Source, path: str, attributes: dict[str, Any]) -> dict[str, Any]:
    if isinstance(shown, Frame):
        return facts_of(shown)
    members = [asdict(each) for each in shown]
    return {
        "path": label_of(path),
        "kind": "store",
        "members": members,
        "attributes": attributes,
    }


def _print(shown: Source, path: str, attributes: dict[str, Any], *, many: bool) -> None:
    if isinstance(shown, Frame):
        print_columns(_rows(shown))
        return
    if many:
        click.echo(label_of(path))
    if not shown:
        click.echo("no members")
    print_columns((printable(each.key), printable(each.what), _size(each.nbytes)) for each in shown)
    print_columns((f"attribute {name!r}", one_line(each)) for name, each in attributes.items())


def _size(nbytes: int | None) -> str:
    return "" if nbytes is None else decimal(nbytes)


def _rows(frame: Frame) -> Iterator[tuple[str, str]]:
    for name, value in frame.info.items():
        yield name, as_commands(value) if name in ("checksums", "superseded") else value
