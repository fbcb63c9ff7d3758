"""What verbs share: options, the frames at a path, tables on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from b2nd_dask.edges.cli.group import safe
from b2nd_dask.edges.datasets.places import members_of
from b2nd_dask.frame.info import bytes_text
from b2nd_dask.frame.members.listing import Member
from b2nd_dask.frame.members.store import ARRAY, EMBED, files, inside, is_named_store
from b2nd_dask.storage import MAIN_MEMBER, Location, split_path, split_store

#: A file, a directory or a URL; completed like a path, checked when it is opened.
PATH = click.Path(readable=False)

#: Names of options whose values stay text, even if they look like numbers.
_CREDENTIAL = re.compile(r"(?i)key(_id)?$|secret|token|user(name)?$|pass(word|phrase)?$|account")

path_argument = click.argument("path", type=PATH)
paths_argument = click.argument("paths", type=PATH, nargs=-1, required=True)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="JSON for programs: sizes in bytes, stable keys."
)


def _option_pairs(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """Parse storage options such as ``anon=true``."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            # the message leaves out the value, which may be a password
            raise click.BadParameter("give KEY=VALUE, such as anon=true")
        options[key] = value
        with suppress(ValueError):
            parsed = json.loads(value)
            if not (type(parsed) in (int, float) and _CREDENTIAL.search(key)):
                options[key] = parsed
    return options


storage_options = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option_pairs,
    help="Option of the fsspec file system of a URL; JSON or text, such as anon=true. Repeatable.",
)


def lengths(text: str) -> int | tuple[int, ...]:
    """Parse one number per axis, such as ``100,200``, or one number for all axes."""
    try:
        numbers = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: give numbers, such as 100,200") from None
    return numbers if len(numbers) > 1 else numbers[0]


def files_in(path: str) -> list[str]:
    """Frames in a local directory and its subdirectories."""
    folder = Path(path)
    if not path or "://" in path or not folder.is_dir() or (folder / MAIN_MEMBER).exists():
        return []
    names = files(Location.of(folder))
    return sorted(str(folder / name) for name in names if name.endswith(ARRAY))


def members_at(path: str, options: dict[str, Any]) -> list[Member] | None:
    """List the members of a store, group or directory; None if there is none with arrays."""
    store, group = split_store(path)
    location = Location.of(store, storage_options=options)
    members = members_of(location)
    if group is not None:
        inner = (m for m in members or () if m.key.lstrip("/").startswith(f"{group}/"))
        return list(inner) or None
    return members if members or is_named_store(location) else None


def path_of(member: Member, path: str) -> str:
    """Path of an array in the store or directory at a path."""
    # paths of arrays in `embed.b2e` start with the directory, not with this file
    store = split_store(path)[0].removesuffix(f"/{EMBED}")
    return inside(Location.of(store), member.key.lstrip("/")).url


def frames_at(path: str, options: dict[str, Any]) -> list[str]:
    """Paths of the frames at a path: itself, or all in the store, dataset or directory."""
    return _frames_in(path, options) or [path]


def _frames_in(path: str, options: dict[str, Any]) -> list[str]:
    members = None
    if not split_path(path)[0].endswith(ARRAY):
        # the caller opens the path and raises the error
        with suppress(Exception):
            members = members_at(path, options)
    if members is None:
        return [path]
    found = []
    for member in members:
        own = path_of(member, path)
        if member.what == "store":
            found += _frames_in(own, options)
        # also the damaged ones: the caller opens them and raises their errors
        elif member.what.startswith(("array", "damaged")):
            found.append(own)
    return found


#: Seconds between updates of a progress bar.
_BETWEEN = 0.1


def print_columns(rows: Iterable[tuple[str, ...]]) -> None:
    """Print texts in left-aligned columns, with control characters escaped."""
    rows = [tuple(map(safe, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print JSON; NaN and infinities become texts, since JSON has no such numbers."""
    click.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def listed(values: Any) -> Any:
    """An array as lists for JSON: times and complex numbers as texts, None if masked."""
    found = np.ma.masked_array(values)
    if found.dtype.kind in "mMc":
        found = np.ma.masked_array(found.astype(str).astype(object), np.ma.getmask(found))
    return found.tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.str
    if isinstance(value, np.ndarray | np.generic):
        value = listed(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str | int | float | None) else str(value)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while the block runs, if stderr is a terminal."""
    console = Console(stderr=True)
    # a bar that is disabled ends with an empty line in rich 13
    if not console.is_terminal:
        yield lambda _done, _of: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task, shown = bar.add_task(safe(what), total=None), 0.0

        def show(done: int, of: int) -> None:
            nonlocal shown
            # limits the updates: there may be millions of calls, one per chunk
            if time.monotonic() > shown + _BETWEEN or done == of:
                shown = time.monotonic()
                bar.update(task, completed=done, total=of)

        yield show
