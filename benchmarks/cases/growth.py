"""`growth_*`: what a graph takes as it grows, by steps: opening, optimizing, computing.

Each graph is computed twice: as this package optimizes it, and as dask does alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import grids, memory, peers
from benchmarks.arrays import B2ND
from benchmarks.model import Case, Contender, Counted, Dataset, Paths, Run, Scenario

DASK_ALONE = "dask alone: "
#: Elements along each axis of a chunk: so few that the number of chunks is what counts.
CHUNK = 20
NDENSE = 10
#: Of the frames that are joined, or reduced each.
FRAME, FRAME_CHUNKS = (20, 10), (10, 10)
PRELOAD = ("b2nd_dask.graph.optimize.rewrite", "benchmarks.harness", "distributed", "rich.console")

Build = Callable[[Path, int], Any]
"""From the path of the data, and how much there is: a dask array, or a list of them."""


@dataclass(frozen=True)
class _Line:
    """One way to make a graph, up to so many of what grows."""

    name: str
    build: Build
    most: float = float("inf")
    most_alone: float = float("inf")
    """By dask alone, where that takes longer."""


@dataclass(frozen=True)
class _Growth:
    """What grows, and the graphs that grow with it: all have the same result."""

    name: str
    axis: str
    title: str
    points: Sequence[int]
    data: Callable[[int], Dataset]
    lines: Sequence[_Line]

    def case(self) -> Case:
        return Case(self.name, self.title, self._scenarios, by_default=False, axis=self.axis)

    def _scenarios(self, quick: bool) -> list[Scenario]:
        return [self._scenario(count) for count in self.points[: 2 if quick else None]]

    def _scenario(self, count: int) -> Scenario:
        return Scenario(
            name=f"{count:,}",
            title=f"{self.title}; {count:,}",
            datasets=(self.data(count),),
            contenders=[
                _contender(line, count, is_ours)
                for line in self.lines
                for is_ours in (True, False)
                if count <= (line.most if is_ours else min(line.most, line.most_alone))
            ],
            targets=(),
            observe=np.asarray,
            rtol=1e-9,
            point=count,
            preload=PRELOAD,
        )


def _contender(line: _Line, count: int, is_ours: bool) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        import dask
        from dask.callbacks import Callback

        peers.use_dask_threads(threads)
        dask.config.set({"b2nd_dask.optimize": is_ours})
        before = memory.resident()

        def run() -> Counted:
            clock, held = [time.process_time()], list[int]()

            def note(*_: object) -> None:
                clock.append(time.process_time())
                held.append(memory.peak_resident() - before)

            made = line.build(paths[B2ND], count)
            note()
            # called with the tasks, before the first of them runs
            with Callback(start=note):
                (result,) = dask.compute(made)
            note()
            names = "open and graph, CPU s", "optimize, CPU s", "compute, CPU s"
            seconds = dict(zip(names, np.diff(clock).tolist(), strict=True))
            return Counted(result, lambda: seconds | {"before tasks run, MB": held[1] / 1e6})

        return run

    return Contender(line.name if is_ours else DASK_ALONE + line.name, prepare, is_ours)


def _read(**options: Any) -> Build:
    def build(path: Path, _: int) -> Any:
        from b2nd_dask import from_b2nd

        return from_b2nd(path, **options).sum()

    return build


def _added(path: Path, count: int) -> Any:
    """A chain of elementwise steps, which the optimizer knows."""
    from b2nd_dask import from_b2nd

    x = from_b2nd(path)
    for _ in range(count):
        x = x + 1
    return x


def _mapped(path: Path, count: int) -> Any:
    """A chain of functions that it does not know."""
    from b2nd_dask import from_b2nd

    x = from_b2nd(path)
    for _ in range(count):
        x = x.map_blocks(_plus_one, dtype=x.dtype)
    return x


def _plus_one(block: Any) -> Any:
    return block + 1


def _sums_of_one(path: Path, count: int) -> Any:
    from b2nd_dask import from_b2nd

    x = from_b2nd(path / _name(0))
    return [(x + number).sum() for number in range(count)]


def _sums_of_each(path: Path, count: int) -> Any:
    from b2nd_dask import from_b2nd

    return [from_b2nd(path / _name(number)).sum() for number in range(count)]


def _joined(path: Path) -> Any:
    from b2nd_dask import from_b2nd

    return from_b2nd(str(path / "*.b2nd"))


def _concatenated(path: Path) -> Any:
    import dask.array as da

    from b2nd_dask import from_b2nd

    return da.concatenate([from_b2nd(each) for each in sorted(path.iterdir())])


def _sum_of(join: Callable[[Path], Any]) -> Build:
    return lambda path, _: join(path).sum()


def _element_of(join: Callable[[Path], Any]) -> Build:
    return lambda path, count: join(path)[count * FRAME[0] // 2, 0]


def _special(count: int) -> Dataset:
    return grids.special(_grid(count), NDENSE, CHUNK).b2nd


def _stored(count: int) -> Dataset:
    recipe = {"data": "numbers in order", "grid": _grid(count), "chunk": CHUNK}
    return Dataset(B2ND, "stored.b2nd", recipe, partial(_write_stored, count))


def _grid(count: int) -> tuple[int, int]:
    """The chunks along both axes, which are as long or ten times as long."""
    rows = 10 ** (len(str(count)) // 2)
    return rows, count // rows


def _write_stored(count: int, path: Path) -> None:
    shape = tuple(CHUNK * along for along in _grid(count))
    elements = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    _write(elements, (CHUNK, CHUNK), path)


def _frames(count: int) -> Dataset:
    recipe = {"data": "numbers in order", "count": count, "shape": FRAME, "chunks": FRAME_CHUNKS}
    return Dataset(B2ND, "frames", recipe, partial(_write_frames, count))


def _one_frame(_: int) -> Dataset:
    recipe = {"data": "numbers in order", "shape": FRAME, "chunks": FRAME_CHUNKS}
    return Dataset(B2ND, "frame.b2nd", recipe, partial(_write_frame, 0))


def _write_frames(count: int, path: Path) -> None:
    path.mkdir()
    for number in range(count):
        _write_frame(number, path / _name(number))


def _name(number: int) -> str:
    return f"{number:06}.b2nd"


def _write_frame(number: int, path: Path) -> None:
    """The elements are those of the first frame and its number."""
    _write(np.arange(np.prod(FRAME), dtype=np.float64).reshape(FRAME) + number, FRAME_CHUNKS, path)


def _write(elements: Any, chunks: tuple[int, int], path: Path) -> None:
    from b2nd_dask import to_b2nd

    to_b2nd(elements, path, chunks=chunks, fsync=False)


_BY_CHUNK = _Line("a block for each chunk", _read(), most=10**5, most_alone=10**4)
_POWERS = tuple(10**power for power in range(5))
_HUNDREDS = tuple(10**power for power in range(2, 7))

CASES = [
    growth.case()
    for growth in (
        _Growth(
            "growth_chunks", "chunks", f"sum of a frame of constant chunks but {NDENSE}",
            _HUNDREDS, _special, [_Line("chunks='auto'", _read(chunks="auto")), _BY_CHUNK],
        ),
        _Growth(
            "growth_stored", "chunks", "sum of a frame of stored chunks",
            _HUNDREDS[:-1], _stored, [_Line("chunks='auto'", _read(chunks="auto")), _BY_CHUNK],
        ),
        _Growth(
            "growth_layers", "layers", "a chain of layers over a frame of two chunks",
            (10, 30, 100, 300, 1000, 3000, 10_000), _one_frame,
            # by dask alone 10,000 take minutes
            [_Line("x + 1", _added, most_alone=3000), _Line("map_blocks", _mapped, most=3000)],
        ),
        _Growth(
            "growth_reductions", "reductions", "sums in one graph, of frames of two chunks",
            (1, 5, 25, 100, 400, 1600), _frames,
            [_Line("of one frame", _sums_of_one), _Line("of a frame each", _sums_of_each)],
        ),
        _Growth(
            "growth_frames", "frames", "sum of joined frames of two chunks", _POWERS, _frames,
            [
                _Line("a pattern", _sum_of(_joined)),
                _Line("da.concatenate", _sum_of(_concatenated), most_alone=1000),
            ],
        ),
        _Growth(
            "growth_element", "frames", "one element of joined frames", _POWERS, _frames,
            [
                _Line("a pattern", _element_of(_joined)),
                _Line("da.concatenate", _element_of(_concatenated), most=1000),
            ],
        ),
    )
]  # fmt: skip
