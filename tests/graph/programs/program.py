"""A program: frames, lines of Python, its outputs, and how they are computed."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from b2nd_dask import open_b2nd
from tests.graph.programs.compare import Difference, assert_alike
from tests.graph.programs.side import Side, written
from tests.graph.programs.sources import Source
from tests.graph.programs.ways import compute, way_in_memory
from tests.graph.pushdown import computing_with

#: Maximum difference of rounded results, in units of the last place.
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
    """Whether the first output is also computed through xarray."""
    front_end: str = "dask"
    """The library of the arrays."""

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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of NumPy and dask."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


class _LeftToDask(logging.Handler):
    """Collects the graphs that the package left to dask: a rule raised, or a graph was unsound."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "b2nd_dask leaves" in message:
            error = record.exc_info[1] if record.exc_info else None
            self.found.append(f"{message}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _noticing_what_is_left() -> Iterator[list[str]]:
    logger, handler = logging.getLogger("b2nd_dask"), _LeftToDask()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.found
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def check(program: Program, folder: Path) -> None:
    """Run a program over frames, and the same over arrays in memory.

    Raises
    ------
    Difference
        They do not give the same, data of the frames were altered, or a graph was left to dask.
    KeyError
        No line makes one of the outputs.
    """
    frames = written(program.sources, folder)
    ours, plain = (
        Side(frames, in_memory=in_memory, library=program.front_end) for in_memory in (False, True)
    )
    outputs = list(program.outputs)
    with (
        quiet(),
        computing_with(threads=program.threads, held=program.held),
        _noticing_what_is_left() as left,
    ):
        for line in program.lines:
            want = plain.execute(line)
            got = ours.execute(line)
            if got is not None or want is not None:
                assert_alike(got, want, 0, 0)
        got = _computed(program, outputs, ours.names)
        want = _computed(replace(program, way=way_in_memory(program.way)), outputs, plain.names)
        # with xarray there is one more output
        for name, one, other in zip([*outputs, *outputs], got, want, strict=False):
            if _fails_itself(other, plain.names[name], plain):
                continue
            try:
                _assert_near(one, other, program, name, plain)
            except Difference:
                if program.way != "distributed":
                    raise
                _assert_near_that_of_cluster(one, program, name, plain)
        _assert_frames_unaltered(got, frames)
    lost = _has_empty_blocks([array.chunks for array in plain.arrays()])
    if left and not lost and not any(isinstance(result, Exception) for result in want):
        raise Difference(f"left: {left[0]}")


#: Errors, by type and text, of the library over arrays in memory; see `_fails_itself`.
_OWN_ERRORS = (
    (AttributeError, "'bool' object"),
    (TypeError, "tuple indices must be integers or slices, not tuple"),
    (ValueError, "malformed string|convert string|invalid literal"),
    # NumPy's imaginary parts of real numbers; those of constant blocks are writable
    (ValueError, "assignment destination is read-only"),
)


def _fails_itself(want: Any, array: Any, plain: Side) -> bool:
    """Whether it is the library that fails over arrays in memory.

    dask.array loses blocks next to those that have no elements, and may fail to stack arrays that
    have none. NumPy compares a scalar of a string with a number to a boolean of Python, which has
    neither a shape nor NumPy's operators. And dask converts strings that no result needs.
    """
    if isinstance(want, bool | int):
        return True
    if any(isinstance(want, kind) and re.search(text, str(want)) for kind, text in _OWN_ERRORS):
        return True
    if not isinstance(want, Exception) and np.shape(want) == array.shape:
        return False
    if not plain.front_end.complete:
        # after two optimizations dask_array may pass a block in place of a list of one block
        return isinstance(want, Exception) or not any(map(math.isnan, array.shape))
    notes = [layer.collection_annotations or {} for layer in array.dask.layers.values()]
    made = [note.get("chunks", ()) for note in notes] + [each.chunks for each in plain.arrays()]
    return _has_empty_blocks(made)


def _has_empty_blocks(made: list[Any]) -> bool:
    """Whether empty blocks lie next to others, which dask.array may lose."""
    return any(0 in sizes and any(sizes) for chunks in made for sizes in chunks)


def _assert_near(got: Any, want: Any, program: Program, name: str, plain: Side) -> None:
    precision = program.outputs[name]
    if not precision:
        assert_alike(got, want, 0, 0)
        return
    rtol = precision * MOST_ULPS
    try:
        assert_alike(got, want, rtol, rtol)
    except Difference:
        # a difference that cancels out has the rounding of its terms
        scale = _largest(plain)
        assert_alike(got, want, rtol, rtol * scale)


def _assert_near_that_of_cluster(got: Any, program: Program, name: str, plain: Side) -> None:
    """A cluster changes byte orders, and fails with some arrays of dask_array, also in memory."""
    try:
        (want,) = compute(program, [plain.names[name]])
    except Exception:  # noqa: BLE001 - no failure here is due to frames
        return
    _assert_near(got, want, program, name, plain)


def _largest(side: Side) -> float:
    """The largest finite number that a program comes across."""
    arrays = [array for array in side.arrays() if array.dtype.kind in "fciu"]
    largest = 1.0
    for array in arrays:
        with contextlib.suppress(Exception):
            found = np.abs(np.ma.getdata(array.compute(scheduler="sync")).astype("c16"))
            largest = max(largest, float(found[np.isfinite(found)].max(initial=0)))
    return largest


def _computed(program: Program, outputs: list[str], names: Mapping[str, Any]) -> list[Any]:
    """All outputs together, or one by one after an error, since several may raise one."""
    arrays = [names[name] for name in outputs]
    try:
        if program.wrapped:
            # which has no missing value for masked arrays of some dtypes
            arrays.append(xr.DataArray(arrays[0]))
        return list(compute(program, arrays))
    except Exception as error:  # noqa: BLE001
        # one after the other, so that it is always the same error that is raised
        way = "as it is" if program.way == "distributed" else program.way
        alone = replace(program, wrapped=False, scheduler="sync", way=way)
        if len(arrays) == 1 and alone == program:
            return [error]
    return [_computed(alone, [name], names)[0] for name in outputs]


def _assert_frames_unaltered(results: list[Any], frames: list[tuple[Path, Source]]) -> None:
    """Write into results; the frames must have the same elements when they are read again."""
    for result in results:
        if isinstance(result, np.ndarray) and result.flags.writeable and result.dtype.kind != "O":
            result[...] = np.ones((), result.dtype)
    for path, source in frames:
        if np.asarray(open_b2nd(path)[...]).tobytes() != source.array().tobytes():
            raise Difference(f"{source} was altered")


def size_of(array: Any) -> float:
    """Number of elements; infinite if unknown."""
    return math.prod(array.shape) if not np.isnan(array.shape).any() else math.inf
