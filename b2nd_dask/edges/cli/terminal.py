"""Output of commands: tables on stdout, progress on stderr if it is a terminal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from b2nd_dask.edges.cli.group import safe

#: Seconds between updates of a progress bar.
_BETWEEN = 0.1


def print_columns(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ()) -> None:
    """Print texts in left-aligned columns, with control characters escaped."""
    rows = [tuple(map(safe, row)) for row in ([head, *rows] if head else rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join([first, *others]).rstrip())


def print_json(value: Any) -> None:
    """Print JSON; NaN and infinities become texts, since JSON has no such numbers."""
    click.echo(json.dumps(_plain(value), indent=2, ensure_ascii=True, allow_nan=False))


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
    return value if isinstance(value, str | int | float | None) else str(value)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while the block runs, if stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(escape(safe(what)), total=None)

        shown = 0.0

        def show(done: int, of: int) -> None:
            nonlocal shown
            # limits the updates: there may be millions of calls, one per chunk
            if time.monotonic() > shown + _BETWEEN or done == of:
                shown = time.monotonic()
                bar.update(task, completed=done, total=of)

        yield show
