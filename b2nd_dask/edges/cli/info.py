"""`info`: the contents of frames and stores, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import click
import numpy as np

from b2nd_dask.edges.cli.group import Failures, Verb, as_commands
from b2nd_dask.edges.cli.shared import (
    json_option,
    members_at,
    path_of,
    paths_argument,
    print_columns,
    print_json,
    storage_options,
)
from b2nd_dask.edges.datasets.places import in_group, location_of, manifest_of, place_of
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ONE_VALUE, superseded_in
from b2nd_dask.frame.info import choice_name, decimal, dims_of, known_chunks, one_line
from b2nd_dask.frame.members.listing import Member
from b2nd_dask.storage import Location, printable

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


def _opened(path: str, options: dict[str, Any], failures: Failures) -> Frame | dict[str, Any]:
    """Open the frame at a path, or describe the store or directory there."""
    try:
        # without verification: `info` also shows damaged frames
        return open_b2nd(path, verify=False, storage_options=options)
    except (B2ndError, OSError):
        members = members_at(path, options)
        if members is None:
            raise
    attributes: dict[str, Any] = {}
    with failures.noted(path, options):
        attributes = _attributes_at(path, options)
    return {
        "path": printable(Location.of(path).label),
        "kind": "store",
        "members": [asdict(_with_shape(each, path)) for each in members],
        "attributes": attributes,
    }


def _attributes_at(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Attributes of the dataset in a store or directory."""
    location, group = location_of(path, options)
    place = place_of(location)
    return {} if place is None else dict(manifest_of(in_group(place, group)).attrs)


def _with_shape(member: Member, path: str) -> Member:
    """Describe a local member by its header; the header of a remote one would cost a request."""
    if member.what != "array" or Location.of(path).is_url:
        return member
    try:
        frame = open_b2nd(path_of(member, path), verify=False)
    except (B2ndError, OSError) as error:
        return replace(member, what=f"damaged: {error}")
    nbytes = frame.cbytes if member.nbytes is None else member.nbytes
    return replace(member, what=_described(frame), nbytes=nbytes)


def _described(frame: Frame) -> str:
    """Lengths with the names of dims, if any, and dtype."""
    names = dims_of(reference_of(frame)) or ("",) * frame.ndim
    pairs = zip(names, frame.shape, strict=True)
    shape = " x ".join(f"{name} {n}".strip() for name, n in pairs) or "0-d"
    return f"array {shape}, {frame.dtype}"


@click.command("info", cls=Verb)
@paths_argument
@json_option
@storage_options
def info_command(paths: tuple[str, ...], as_json: bool, storage_options: dict[str, Any]) -> int:
    """Describe the frames at PATHS (files, directories or URLs).

    For a dataset or a store of python-blosc2 (.b2z, .b2d, .b2e), list its members and attributes;
    PATH/KEY is one member or group. Reads metadata and, to estimate the bytes that `compact` would
    free, the chunk headers of local frames.

    \b
    Examples:
      b2nd-dask info rain.b2nd
      b2nd-dask info store.b2z/group/rain
      b2nd-dask info --json *.b2nd | jq '.[].ratio'
    """
    found, failures = [], Failures()
    for number, path in enumerate(paths):
        with failures.noted(path, storage_options):
            shown = _opened(path, storage_options, failures)
            if as_json:
                found.append(facts_of(shown) if isinstance(shown, Frame) else shown)
                continue
            if number:
                click.echo()
            if isinstance(shown, Frame):
                print_columns(_rows(shown))
            else:
                _print(shown, many=len(paths) > 1)
    if as_json:
        print_json(found)
    return failures.code


def _rows(frame: Frame) -> Iterator[tuple[str, str]]:
    for name, value in frame.info.items():
        yield name, as_commands(value) if name in ("checksums", "superseded") else value


def _print(store: dict[str, Any], *, many: bool) -> None:
    if many:
        click.echo(store["path"])
    if not store["members"]:
        click.echo("no members")
    print_columns(
        (
            printable(each["key"]),
            printable(each["what"]),
            "" if each["nbytes"] is None else decimal(each["nbytes"]),
        )
        for each in store["members"]
    )
    print_columns(
        (f"attribute {name!r}", one_line(each)) for name, each in store["attributes"].items()
    )
