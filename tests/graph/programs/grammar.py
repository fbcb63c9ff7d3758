"""Programs, drawn line by line: each line runs on arrays in memory to find its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.graph.programs.arguments import draw_arguments, draw_chunks
from tests.graph.programs.groups import EVERY, GROUPS, PLANS
from tests.graph.programs.program import Program, quiet, size_of
from tests.graph.programs.side import Side, written
from tests.graph.programs.sources import draw_source
from tests.graph.programs.values import JUMPING, Line, Value
from tests.graph.programs.ways import draw_way

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

MOST_ELEMENTS = 20_000
MOST_BLOCKS = 60
MOST_TASKS = 1500
#: What dask-array 0.7.1 does not compute over arrays in memory either: it loses the task that joins
#: the blocks of a Delayed's argument where it fuses others, and slices what is below a function of
#: blocks, so that they are not square any more.
LOST_BY_EXPRESSIONS = ("dask.delayed(", "fn.square(")


class Drawing:
    """A program that grows."""

    def __init__(self, rng: Random, folder: Path, library: str = "dask") -> None:
        self.rng = rng
        self.library = library
        self.sources = tuple(draw_source(rng) for _ in range(rng.choice([1, 1, 1, 2])))
        self.side = Side(written(self.sources, folder), in_memory=True, library=library)
        self.lines: list[str] = []
        self.values: dict[str, Value] = {}
        self.uses: dict[str, int] = {}
        self.wanted: set[str] = set()
        """Arrays that are computed together with results that depend on them."""
        self._count = 0

    def program(self, *, distributed: bool = False) -> Program:
        """Draw lines, and outputs of them."""
        with quiet():
            for number in range(len(self.sources)):
                self._read(number)
            plan = self.rng.choice(PLANS)
            for groups in plan or [EVERY] * self.rng.randint(1, 7):
                self._draw_line(groups, newest=0.7 if plan is None else 0.97)
        # arrays without dependents, and a few others
        names = [
            name
            for name in self.values
            if not self.uses[name] or name in self.wanted or self.rng.random() < 0.1
        ]
        way = self._way(distributed=distributed)
        return Program(
            self.sources,
            tuple(self.lines),
            {name: self.values[name].precision for name in names},
            way=way,
            scheduler=self.rng.choice(["sync", "sync", "sync", "threads"]),
            held=self.rng.choice([100, 1 << 28]),
            threads=self.rng.choice([1 / 16, 1 / 16, 2]),
            # between processes those are pickled, and lose their byte order
            wrapped=self.rng.random() < 0.05 and way != "distributed",
            front_end=self.library,
        )

    def _way(self, *, distributed: bool) -> str:
        text = "".join([*self.lines, *(f"{source.dtype!r}" for source in self.sources)])
        # between processes masked arrays get lost whose fill value is none of their dtype
        masked = "ma." in text or "masked" in text
        # arrays in memory lose their byte order
        swapped = "'>" in text or ",>" in text
        way = draw_way(self.rng, distributed=distributed and not masked, pickled=not swapped)
        return way if self._may_optimize() or not way.startswith("optimized") else "as it is"

    def _read(self, number: int) -> None:
        source = self.sources[number]
        chunks = [
            None,
            None,
            None,
            None,
            -1,
            tuple(2 * n for n in source.chunks),
            draw_chunks(self.rng, source.shape, least=0),
        ]
        arguments = [self.rng.choice(chunks)]
        if self.rng.random() < 0.15:
            arguments.append(self.rng.choice(chunks))  # the same frame twice
        for chosen in {repr(chunks): chunks for chunks in arguments}.values():
            options = f", chunks={chosen!r}" if chosen else ""
            if source.start == "uninit" and source.dtype[0] != "V" and self.rng.random() < 0.3:
                options += ", uninit=1"
            read = self.add(
                f"{{r}} = frame({number}{options})", [], "keeps", views=True, fresh=True
            )
            if read is not None and self._is_there(read):
                # a function in place needs to know which arrays share its blocks
                self.lines.pop()
                del self.values[read.name]

    def _is_there(self, value: Value) -> bool:
        """Whether an array has another name, too."""
        others = (other for other in self.values.values() if other is not value)
        return any(self.array(other).name == self.array(value).name for other in others)

    def _draw_line(self, groups: tuple[str, ...], newest: float) -> None:
        usable = list(self.values.values())
        if not usable:
            return
        value = usable[-1] if self.rng.random() < newest else self.rng.choice(usable)
        if self.array(value).ndim == 0 and self.rng.random() > newest:
            value = self.rng.choice(usable)
        self.draw_of(groups, value)

    def draw_of(self, groups: Sequence[str], value: Value) -> None:
        """Draw a line of one of some groups, for an array."""
        group = self.rng.choices(groups, [GROUPS[name][0] for name in groups])[0]
        GROUPS[group][1](self, value)

    def expression(
        self, template: str, values: list[Value], effect: str, **flags: bool
    ) -> Value | None:
        """Add an expression as a line; return the properties of its result if it is an array."""
        return self.add("{r} = " + template, values, effect, **flags)

    def add(self, template: str, values: list[Value], effect: str, **flags: bool) -> Value | None:
        """Add a line; return the properties of its result if later lines can use it as an array."""
        twice = flags.get("twice", False)
        if effect in JUMPING and any(v.state == "rough" for v in values):
            return None
        if twice and any(v.written for v in values):
            return None
        if not self.side.front_end.complete and any(
            lost in template for lost in LOST_BY_EXPRESSIONS
        ):
            return None
        if "optimize(" in template and not self._may_optimize():
            return None
        name = f"v{self._count}"
        self._count += 1
        given = draw_arguments(self.rng, self.array(values[0])) if values else {}
        arrays = {letter: value.name for letter, value in zip("ab", values, strict=False)}
        text = template.format(r=name, **arrays, **given)
        error = self.side.execute(text)
        if error is not None:
            # so that errors are compared, but do not make up most of a program
            if self.side.front_end.complete and self.rng.random() < 0.1:
                self.lines.append(text)
            return None
        made = self.side.names[name]
        if not self._fits(made):
            return None
        self.lines.append(text)
        is_complex = bool(values) and self.array(values[0]).dtype.kind == "c"
        if effect == "keeps" and is_complex and any(f in text for f in ("abs(", "sign(")):
            effect = "rounds"
        for value in values:
            for used in value.views:
                self.uses[used] += 2 if twice else used == value.name
        line = Line(text, effect, tuple(size_of(self.array(v)) for v in values), **flags)
        self.uses[name] = 0
        self.values[name] = line.makes(name, values, made)
        return self.values[name]

    def _may_optimize(self) -> bool:
        """Whether arrays may be optimized one by one.

        dask_array then moves what comes later below a function in place, so that the function is
        called twice with the same blocks.
        """
        return self.side.front_end.complete or not any("in_place" in line for line in self.lines)

    def _fits(self, made: Any) -> bool:
        if not self.side.front_end.has_made(made):
            return False
        try:
            few = made.ndim <= 6 and made.npartitions <= MOST_BLOCKS and made.dtype is not None
            few = few and len(made.dask) <= MOST_TASKS
        except Exception:  # noqa: BLE001 - of blocks that do not fit each other, found out here
            return False
        return few and size_of(made) <= MOST_ELEMENTS

    def array(self, value: Value) -> Any:
        """The array in memory that has the name of a value."""
        return self.side.names[value.name]

    def is_masked(self, value: Value) -> bool:
        """Whether blocks of an array are masked arrays."""
        return isinstance(self.array(value)._meta, np.ma.MaskedArray)


def draw_program(
    rng: Random, folder: Path, library: str = "dask", *, distributed: bool = False
) -> Program:
    """Draw a program over one or two frames."""
    return Drawing(rng, folder, library).program(distributed=distributed)


def without(program: Program, number: int) -> Program:
    """A program without one of its lines."""
    return replace(program, lines=program.lines[:number] + program.lines[number + 1 :])
