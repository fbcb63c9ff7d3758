"""Read mutated frames in a separate process.

`run_cases` prints a line at the start of a case and one for each finding. Cases that crash, hang or
need too much memory end the process.
"""

from __future__ import annotations

import itertools
import json
import resource
import signal
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np

from b2nd_dask import B2ndError, from_b2nd, open_b2nd, verify
from b2nd_dask.frame.array import reference_of
from tests.frame.probe import address_space
from tests.fuzz.files import Files, from_text, write_files
from tests.fuzz.mutate import mutated
from tests.vectors import raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from b2nd_dask import Frame

SECONDS = 10
"""CPU seconds for one case."""
MEMORY = 512 << 20
"""Bytes of address space beyond those of the imports."""
MOST = 1 << 24
"""Bytes: larger frames, by their header, are read only at single elements."""
LARGEST_CHUNK = 1 << 26
"""Bytes: chunks are decoded whole, so frames of larger ones are only opened."""


class Wrong(Exception):  # noqa: N818 - a finding, not an error of the package
    """A read returned impossible values."""


class Stirrer:
    """Changes the bytes of reused memory, so that unwritten elements differ between reads."""

    def __init__(self) -> None:
        noise = [np.random.default_rng(n).integers(0, 256, 200_000, "u1") for n in range(2)]
        how = {"chunks": (100_000,), "blocks": (10_000,), "cparams": {"clevel": 0}}
        self._frames = [open_b2nd(blosc2.asarray(n, **how)) for n in noise]
        self._turn = 0

    def stir(self) -> None:
        """Fill freed memory and read buffers with alternating bytes."""
        self._turn ^= 1
        # a part of one chunk, whole chunks, single blocks
        for part in (slice(5, 90_000), slice(None), slice(5, 30_000)):
            self._frames[self._turn][part]
        for nbytes in (64, 256, 1024, 4096, 16384, 65536):
            blocks = [np.full(nbytes, 0x55 << self._turn, np.uint8) for _ in range(4)]
            del blocks


def whole(frame: Frame, stirrer: Stirrer) -> None:
    """Read all elements twice: unwritten values would differ."""
    stirrer.stir()
    first = frame[...]
    if (
        np.asarray(first).shape != frame.shape
        or np.asarray(first).dtype.itemsize != frame.dtype.itemsize
    ):
        raise Wrong(f"{np.asarray(first).shape} {np.asarray(first).dtype} of {frame!r}")
    stirrer.stir()
    if frame.ndim and raw(first) != raw(frame[...]):
        raise Wrong("two reads differ")


def places(frame: Frame) -> None:
    """Read single elements and a region with steps."""
    if frame.size:
        # a product of ranges would first list them
        starts = [
            range(0, min(length, 3 * step), step)
            for length, step in zip(frame.shape, frame.blocks, strict=True)
        ]
        for place in itertools.islice(itertools.product(*starts), 4):
            frame[place]
        frame[tuple(n - 1 for n in frame.shape)]
    frame[tuple(slice(0, 40, 3) for _ in frame.shape)]
    if frame.size and frame.ndim:
        reference_of(frame).read_points(tuple(np.array([0, n // 2, n - 1]) for n in frame.shape))


def graph(source: Any, frame: Frame) -> None:
    """Compute a corner of the dask array."""
    array = from_b2nd(source)
    corner = tuple(slice(0, 2) for _ in frame.shape)
    got = array[corner].compute(scheduler="sync")
    if np.shape(got) != tuple(min(n, 2) for n in frame.shape):
        raise Wrong(f"the corner has shape {np.shape(got)}")
    if frame.size and frame.size * frame.dtype.itemsize <= MOST and frame.dtype.kind in "iufb":
        # the floats are noise
        with np.errstate(all="ignore"):
            array.max().compute(scheduler="sync")


def attempt(action: Callable[[], object]) -> str | None:
    """Run an action; return a finding or None."""
    try:
        action()
    except (B2ndError, FileNotFoundError):
        return None
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    return None


def probe(source: Any, stirrer: Stirrer, *, lazily: bool) -> str | None:
    """Read a frame by all functions; return the first finding."""
    opened: list[Frame] = []
    # checksums would keep most damage from the decoder
    if finding := attempt(lambda: opened.append(open_b2nd(source, verify=False))):
        return finding
    if not opened:
        return None
    frame = opened[0]
    actions: list[Callable[[], object]] = [lambda: repr(frame)]
    for view in (frame.meta, frame.vlmeta):
        actions += [lambda view=view, name=name: view[name] for name in view]
    chunk_nbytes = reference_of(frame).parsed.grid.chunk_nbytes
    if chunk_nbytes <= LARGEST_CHUNK:
        actions.append(lambda: places(frame))
        if frame.nbytes <= MOST and frame.nchunks < 1 << 14:
            actions.append(lambda: whole(frame, stirrer))
        if lazily:
            actions.append(lambda: graph(source, frame))
    actions += [lambda: open_b2nd(source), lambda: verify(source, threads=1)]
    for action in actions:
        if finding := attempt(action):
            return finding
    return None


def run_case(files: Files, folder: Path, number: int, stirrer: Stirrer) -> str | None:
    """Probe a frame as bytes or as a file; a directory always on the disk."""
    if "" in files and number % 3:
        return probe(files[""], stirrer, lazily=number % 4 == 1)
    path = write_files(files, folder / f"{number}.b2nd")
    return probe(path, stirrer, lazily=number % 4 == 0)


def case(seeds: dict[str, Files], seed: int, number: int) -> tuple[str, Files]:
    """Make a case, deterministically."""
    rng = Random(f"{seed} {number}")
    name = rng.choice(sorted(seeds))
    return name, mutated(seeds[name], rng)


def load_seeds(path: Path) -> dict[str, Files]:
    """Load the frames that the parent has stored."""
    return {name: from_text(text) for name, text in json.loads(path.read_text("ascii")).items()}


def warm_up() -> Files:
    """A sound frame with metadata."""
    array = blosc2.asarray(np.arange(20.0), chunks=(9,), blocks=(4,))
    array.schunk.vlmeta["a"] = [1, {2}, np.arange(2)]
    return {"": array.to_cframe()}


def limit() -> None:
    """Limit the memory, and disable core files."""
    allowed = address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_cases(path: Path, mutations: tuple[int, int, int] | None) -> None:
    """Run mutations (seed, first, count) of the frames in a file; with None the frames unchanged.

    Limits the memory of this process permanently.
    """
    seeds = load_seeds(path)
    seed, first, count = mutations or (0, 0, len(seeds))
    warnings.simplefilter("error")
    stirrer = Stirrer()
    with tempfile.TemporaryDirectory() as folder:
        # loads modules before the limit is set
        for way in range(1, 5):
            run_case(warm_up(), Path(folder), -way, stirrer)
        limit()
        for number in range(first, first + count):
            print(json.dumps({"begun": number}), flush=True)
            # no handler: the signal ends the process even if C code holds the interpreter
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            files = case(seeds, seed, number)[1] if mutations else list(seeds.values())[number]
            finding = run_case(files, Path(folder), number, stirrer)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if finding:
                print(json.dumps({"found": number, "what": finding}), flush=True)
    print(json.dumps({"finished": True}), flush=True)
