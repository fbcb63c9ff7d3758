"""A program: frames, lines of Python, and what is computed of it in which way."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from b2nd_dask import from_b2nd, open_b2nd
from tests.graph.programs.compare import Difference, assert_alike
from tests.graph.programs.functions import functions
from tests.graph.programs.sources import Source
from tests.graph.pushing import computing_with

#: How outputs come to be computed.
WAYS = ("as it is", "optimized", "optimized twice", "persisted", "unoptimized", "unfused")
#: Of rounded results, the differences that are not looked into, in units of the last place.
MOST_ULPS = 1 << 12


@dataclass(frozen=True)
class Program:
    """Frames, lines that make arrays of them, and the names of those that are computed."""

    sources: tuple[Source, ...]
    lines: tuple[str, ...]
    outputs: Mapping[str, float]
    """The precision of each: 0 for exact, otherwise that of the narrowest floats in it."""
    way: str = "as it is"
    scheduler: str = "sync"
    held: int = 1 << 28
    """Bytes that may wait in memory for a late result."""
    threads: float = 1 / 16
    wrapped: bool = False
    """Whether the first output is asked for once more, with xarray on top."""

    def as_test(self, name: str) -> str:
        """The program as an entry of `test_found_programs.FOUND`."""
        entry = [f"    {name!r}: Program(", "        ("]
        entry += [f"            {source!r}," for source in self.sources]
        entry += ["        ),", "        ("]
        entry += [f"            {line!r}," for line in self.lines]
        entry += ["        ),", f"        {dict(self.outputs)!r},"]
        for known in fields(self)[3:]:
            value = getattr(self, known.name)
            entry += [f"        {known.name}={value!r},"] * (value != known.default)
        return "\n".join([*entry, "    ),"])


class Side:
    """The names of one side of a program: over frames, or over arrays in memory."""

    def __init__(self, frames: list[tuple[Path, Source]], *, in_memory: bool) -> None:
        self._frames = frames
        self._in_memory = in_memory
        self.names: dict[str, Any] = {
            "da": da,
            "np": np,
            "dask": dask,
            "xr": xr,
            "pd": pd,
            "functools": functools,
            "operator": operator,
            "frame": self.frame,
            "fn": functions(in_memory=in_memory),
        }

    def frame(self, number: int, chunks: Any = None, uninit: Any = None) -> da.Array:
        """The blocks of a frame, as `from_b2nd` gives them."""
        path, source = self._frames[number]
        x = from_b2nd(path, chunks=chunks, uninit=uninit)
        if not self._in_memory:
            return x
        array = source.array()
        if uninit is not None and source.start == "uninit":
            written = np.zeros(array.shape, bool)
            for region, _ in source.writes:
                written[eval(f"np.s_[{region}]")] = True
            array = np.where(written, array, np.asarray(uninit, array.dtype)).astype(array.dtype)
        return da.from_array(array, chunks=x.chunks)

    def execute(self, line: str) -> Exception | None:
        """Run a line; give what it raises."""
        try:
            exec(line, self.names)
        except Exception as error:  # noqa: BLE001 - both sides must raise the same
            return error
        return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


_numbers = itertools.count()
_paths: dict[tuple[Path, Source], Path] = {}


def written(sources: tuple[Source, ...], folder: Path) -> list[tuple[Path, Source]]:
    """Write frames to paths that no frame had before, each once for a folder."""
    for source in sources:
        if (folder, source) not in _paths:
            path = folder / f"{next(_numbers)}.b2nd"
            source.write(path)
            _paths[folder, source] = path
    return [(_paths[folder, source], source) for source in sources]


def check(program: Program, folder: Path) -> None:
    """Run a program over frames, and the same over arrays in memory.

    Raises
    ------
    Difference
        They do not give the same, or data of the frames were altered.
    KeyError
        No line makes one of the outputs.
    """
    frames = written(program.sources, folder)
    ours, plain = Side(frames, in_memory=False), Side(frames, in_memory=True)
    with _quiet(), computing_with(threads=program.threads, held=program.held):
        for line in program.lines:
            want = plain.execute(line)
            got = ours.execute(line)
            if got is not None or want is not None:
                assert_alike(got, want, 0, 0)
        outputs = list(program.outputs)
        got, want = (_computed(program, outputs, side.names) for side in (ours, plain))
        # where xarray is on top, there is one more
        for name, one, other in zip([*outputs, *outputs], got, want, strict=False):
            _assert_near(one, other, program, name, plain)
        _assert_frames_unaltered(got, frames)


def _assert_near(got: Any, want: Any, program: Program, name: str, plain: Side) -> None:
    precision = program.outputs[name]
    if not precision:
        assert_alike(got, want, 0, 0)
        return
    rtol = precision * MOST_ULPS
    try:
        assert_alike(got, want, rtol, rtol)
    except Difference:
        # what cancelled out was rounded as its terms were
        scale = _largest(plain)
        assert_alike(got, want, rtol, rtol * scale)


def _largest(side: Side) -> float:
    """The largest finite number that a program comes across."""
    arrays = [a for a in side.names.values() if isinstance(a, da.Array) and a.dtype.kind in "fciu"]
    largest = 1.0
    for array in arrays:
        with contextlib.suppress(Exception):
            found = np.abs(np.ma.getdata(array.compute(scheduler="sync")).astype("c16"))
            largest = max(largest, float(found[np.isfinite(found)].max(initial=0)))
    return largest


def _computed(program: Program, outputs: list[str], names: Mapping[str, Any]) -> list[Any]:
    """All outputs together, or one by one where there are errors: several may be raised."""
    arrays = [names[name] for name in outputs]
    if program.wrapped:
        arrays.append(xr.DataArray(arrays[0]))
    try:
        return list(_compute(program, arrays))
    except Exception as error:  # noqa: BLE001
        if len(arrays) == 1:
            return [error]
    alone = replace(program, wrapped=False)
    return [_computed(alone, [name], names)[0] for name in outputs]


def _compute(program: Program, arrays: list[Any]) -> Any:
    workers = {"num_workers": 2} if program.scheduler == "threads" else {}
    with dask.config.set({"scheduler": program.scheduler, **workers}):
        if program.way == "unoptimized":
            return dask.compute(*arrays, optimize_graph=False)
        if program.way == "unfused":
            with dask.config.set({"optimization.fuse.active": False}):
                return dask.compute(*arrays)
        if program.way.startswith("optimized"):
            arrays = dask.optimize(*arrays)
        if program.way == "optimized twice":
            arrays = dask.optimize(*arrays)
        if program.way == "persisted":
            arrays = dask.persist(*arrays)
        return dask.compute(*arrays)


def _assert_frames_unaltered(results: list[Any], frames: list[tuple[Path, Source]]) -> None:
    """Write into results; frames that are read once more hold what they held."""
    for result in results:
        if isinstance(result, np.ndarray) and result.flags.writeable and result.dtype.kind != "O":
            result[...] = np.ones((), result.dtype)
    for path, source in frames:
        if np.asarray(open_b2nd(path)[...]).tobytes() != source.array().tobytes():
            raise Difference(f"{source} was altered")


def size_of(array: Any) -> float:
    """Elements; infinite where nobody knows."""
    return math.prod(array.shape) if not np.isnan(array.shape).any() else math.inf
