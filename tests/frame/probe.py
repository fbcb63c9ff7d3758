"""Read files that may do harm, in a process of its own.

`run_vectors` prints one JSON line when it begins a vector and one when it has finished. A vector
that takes too long or too much memory ends the process.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from b2nd_dask import B2ndError, from_b2nd, open_b2nd
from tests.vectors import digest, load, raw, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from b2nd_dask import Frame
    from tests.vectors import Row

SECONDS = 10
"""Of processor time for one vector: a hundred times what a slow one takes."""
MEMORY = 384 * 2**20
"""Bytes of address space beyond what the imports took."""
MOST_POINTS = 60

Outcome = dict[str, Any]


def attempt(action: Callable[[], Outcome]) -> Outcome:
    """Run an action and describe the error that it ends with."""
    try:
        return action()
    except (B2ndError, FileNotFoundError) as error:
        return {"outcome": "error", "type": type(error).__name__, "message": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever else it is, the test reports it
        return {"outcome": "foreign", "type": type(error).__name__, "message": str(error)}


def full(array: np.ndarray, row: Row) -> Outcome:
    """Compare the whole of an array."""
    right = row.any_values or digest(raw(np.asarray(array))) == row.sha256
    return {"outcome": "right" if right else "wrong"}


def points(frame: Frame) -> Iterator[tuple[int, ...]]:
    """Give one place in each of the first blocks, and the last place."""
    steps = zip(frame.shape, frame.blocks, strict=True)
    starts = itertools.product(*(range(0, length, max(step, 1)) for length, step in steps))
    yield from itertools.islice(starts, MOST_POINTS)
    if frame.size:
        yield tuple(length - 1 for length in frame.shape)


def single_elements(row: Row) -> list[Outcome]:
    """Read places one by one, which decodes single blocks of a chunk."""
    frame = open_b2nd(row.path)
    want = row.array().view(frame.dtype)

    def read(place: tuple[int, ...]) -> Outcome:
        return {"outcome": "right" if same(frame[place], want[place]) else "wrong"}

    return [attempt(lambda place=place: read(place)) for place in points(frame)]


def metadata(row: Row) -> list[Outcome]:
    """Decode each metadata entry."""
    frame = open_b2nd(row.path)

    def decode(view: Any, name: str) -> Outcome:
        return {"outcome": "right", "type": type(view[name]).__name__}

    return [
        attempt(lambda view=view, name=name: decode(view, name))
        for view in (frame.meta, frame.vlmeta)
        for name in view
    ]


def lazy(path: Path) -> Outcome:
    """Build a graph and compute a corner of it."""
    array = from_b2nd(path)
    corner = array[tuple(slice(0, 1) for _ in array.shape)]
    return {"outcome": "right", "shape": corner.compute(scheduler="sync").shape}


def several(action: Callable[[Row], list[Outcome]], row: Row) -> list[Outcome]:
    """Run an action with many outcomes, of which an error at the beginning is the only one."""
    found: list[Outcome] = []

    def collect() -> Outcome:
        found.extend(action(row))
        return {"outcome": "right"}

    whole = attempt(collect)
    return found if whole["outcome"] == "right" else [whole]


def probe(row: Row) -> dict[str, Any]:
    """Read a vector in all ways there are."""
    found: dict[str, Any] = {
        "frame": attempt(lambda: full(open_b2nd(row.path)[...], row)),
        "dask": attempt(lambda: full(from_b2nd(row.path).compute(scheduler="sync"), row)),
        "metadata": several(metadata, row),
    }
    if row.path.is_file():
        content = row.path.read_bytes()
        found["bytes"] = attempt(lambda: full(open_b2nd(content)[...], row))
    if row.contents and math.prod(row.array().shape):
        found["items"] = several(single_elements, row)
    return found


def address_space() -> int:
    """Count the bytes of address space of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def limit() -> None:
    """Bound the memory of this process, and make a crash leave no file behind."""
    allowed = address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_graph(path: Path) -> Outcome:
    """Make a graph of a file, in bounded memory."""
    limit()
    return attempt(lambda: lazy(path))


def run_vectors(names: list[str]) -> None:
    """Probe vectors."""
    known = {row.file: row for row in load()}
    # what is imported at the first read must not count as memory that a vector takes
    sound = next(row for row in load() if row.expect == "read" and row.upstream_reads)
    probe(sound)
    limit()
    for name in names:
        print(json.dumps({"begun": name}), flush=True)
        # no handler: the signal ends the process even where C code holds the interpreter
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found = probe(known[name])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"done": name, "found": found}), flush=True)
