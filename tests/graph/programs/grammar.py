"""Programs, drawn line by line: each line is tried on arrays in memory, which tell its shape."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from tests.graph.programs import tables
from tests.graph.programs.arguments import draw_arguments, draw_chunks
from tests.graph.programs.program import WAYS, Program, Side, _quiet, size_of, written
from tests.graph.programs.sources import draw_source

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

MOST_ELEMENTS = 20_000
MOST_BLOCKS = 60
MOST_TASKS = 1500
#: Bits of the significands of floats, by size of their parts.
SIGNIFICANDS = {2: 11, 4: 24, 8: 53, 16: 64}


@dataclass(frozen=True)
class Value:
    """What is known of an array of a program."""

    name: str
    bits: float = 2
    """That the largest number takes."""
    state: str = "exact"
    """exact, rounded or rough."""
    significand: int = 53
    """Of the narrowest floats on the way."""
    views: frozenset[str] = frozenset()
    """Arrays whose memory this one may share, with its own name."""

    @property
    def precision(self) -> float:
        """0 for exact, and what is rounded alike in each way."""
        return 2.0**-self.significand if self.state == "rough" else 0.0


class Drawing:
    """A program that grows."""

    def __init__(self, rng: Random, folder: Path) -> None:
        self.rng = rng
        self.sources = tuple(draw_source(rng) for _ in range(rng.choice([1, 1, 1, 2])))
        self.side = Side(written(self.sources, folder), in_memory=True)
        self.lines: list[str] = []
        self.values: dict[str, Value] = {}
        self.uses: dict[str, int] = {}
        self._count = 0

    def program(self) -> Program:
        """Draw lines, and outputs of them."""
        with _quiet():
            for number in range(len(self.sources)):
                self._read(number)
            plan = self.rng.choice(PLANS)
            for groups in plan or [tuple(GROUPS)] * self.rng.randint(1, 7):
                self._draw_line(groups, newest=0.7 if plan is None else 0.97)
        # what nothing is made of, and a few others
        names = [n for n in self.values if not self.uses[n] or self.rng.random() < 0.1]
        outputs = {name: self.values[name].precision for name in names}
        return Program(
            self.sources,
            tuple(self.lines),
            outputs,
            way=self.rng.choices(WAYS, (8, 3, 3, 3, 1, 1))[0],
            scheduler=self.rng.choice(["sync", "sync", "sync", "threads"]),
            held=self.rng.choice([100, 1 << 28]),
            threads=self.rng.choice([1 / 16, 1 / 16, 2]),
            wrapped=self.rng.random() < 0.05,
        )

    def _read(self, number: int) -> None:
        source = self.sources[number]
        chunks = [
            None,
            None,
            None,
            None,
            -1,
            tuple(2 * n for n in source.chunks),
            draw_chunks(self.rng, source.shape),
        ]
        arguments = [self.rng.choice(chunks)]
        if self.rng.random() < 0.15:
            arguments.append(self.rng.choice(chunks))  # the same frame twice
        for chosen in {repr(chunks): chunks for chunks in arguments}.values():
            options = f", chunks={chosen!r}" if chosen else ""
            if source.start == "uninit" and self.rng.random() < 0.3:
                options += ", uninit=1"
            self._try(f"{{r}} = frame({number}{options})", [], "keeps", views=True)

    def _draw_line(self, groups: tuple[str, ...], newest: float) -> None:
        usable = list(self.values.values())
        if not usable:
            return
        value = usable[-1] if self.rng.random() < newest else self.rng.choice(usable)
        if self._array(value).ndim == 0 and self.rng.random() > newest:
            value = self.rng.choice(usable)
        group = self.rng.choices(groups, [GROUPS[name][0] for name in groups])[0]
        GROUPS[group][1](self, value)

    # ---- groups of lines

    def elementwise(self, value: Value) -> None:
        kind = self.rng.choices(list(tables.ELEMENTWISE), (5, 4, 2, 1, 4, 1))[0]
        effect = "jumps" if kind == "odd" else kind
        self._expression(self.rng.choice(tables.ELEMENTWISE[kind]), [value], effect, views=True)

    def move(self, value: Value) -> None:
        self._expression(self.rng.choice(tables.MOVES), [value], "keeps", views=True)

    def copy(self, value: Value) -> None:
        self._expression(self.rng.choice(tables.COPIES), [value], "keeps", twice=True)

    def index(self, value: Value) -> None:
        self._expression(self.rng.choice(tables.INDICES), [value], "keeps", views=True)

    def slices(self, value: Value) -> None:
        self._expression("{a}[{slices}]", [value], "keeps", views=True)

    def reduction(self, value: Value) -> None:
        effect = self.rng.choices(list(tables.REDUCTIONS), (4, 1, 2, 1, 3))[0]
        name = self.rng.choice(tables.REDUCTIONS[effect])
        arguments = ["axis={axes}"]
        if self.rng.random() < 0.3:
            arguments.append("keepdims=True")
        if self.rng.random() < 0.5:
            arguments.append(f"split_every={self.rng.choice([2, 3, 16])}")
        if self.rng.random() < 0.2 and effect != "keeps":
            dtype = self.rng.choice(["f8", "f4", "f2", "i8", "u1", "i1", "c16", ">f8", "?"])
            arguments.append(f"dtype={dtype!r}")
        if name.startswith("moment"):
            arguments.append(f"order={name[-1]}")
        name = name.rstrip("23")
        self._expression(f"da.{name}({{a}}, {', '.join(arguments)})", [value], effect)

    def other(self, value: Value) -> None:
        effect = self.rng.choices(list(tables.OTHERS), (6, 2, 4, 1, 4, 5))[0]
        self._expression(self.rng.choice(tables.OTHERS[effect]), [value], effect, twice=True)

    def nothing(self, value: Value) -> None:
        pass

    def parts(self, value: Value) -> None:
        self._expression(self.rng.choice(tables.PARTS), [value], "keeps", twice=True)

    def late(self, value: Value) -> None:
        self._expression(self.rng.choice(tables.LATE), [value], "means", twice=True)

    def blocks(self, value: Value) -> None:
        effect = self.rng.choice(["keeps", "keeps", "grows"])
        self._expression(self.rng.choice(tables.BLOCKS[effect]), [value], effect, views=True)

    def in_place(self, value: Value) -> None:
        if any(self.uses[name] > (name != value.name) for name in value.views):
            return
        template = self.rng.choice(tables.IN_PLACE)
        if self._expression(template, [value], "grows"):
            # what it shares memory with holds something else from then on
            for name in value.views:
                self.values.pop(name, None)

    def mask(self, value: Value) -> None:
        table = tables.UNMASKS if self._is_masked(value) else tables.MASKS
        self._expression(self.rng.choice(table), [value], "jumps", twice=True)

    def pair(self, value: Value) -> None:
        effect = self.rng.choice(["grows", "grows", "grows", "jumps"])
        others = [v for v in self.values.values() if v.name != value.name]
        alike = [v for v in others if self._array(v).shape == self._array(value).shape]
        if others:
            other = self.rng.choice(alike or others)
            template = self.rng.choice(tables.PAIRS[effect])
            self._expression(template, [value, other], effect, twice=True)

    def statement(self, value: Value) -> None:
        self._try(self.rng.choice(tables.STATEMENTS), [value], "keeps", twice=True)

    # ---- how a line is made

    def _expression(self, template: str, values: list[Value], effect: str, **flags: bool) -> bool:
        return self._try("{r} = " + template, values, effect, **flags)

    def _try(
        self,
        template: str,
        values: list[Value],
        effect: str,
        *,
        views: bool = False,
        twice: bool = False,
    ) -> bool:
        """Add a line; whether it made an array that can be used on."""
        if effect == "jumps" and any(v.state == "rough" for v in values):
            return False
        name = f"v{self._count}"
        self._count += 1
        given = draw_arguments(self.rng, self._array(values[0])) if values else {}
        arrays = {letter: value.name for letter, value in zip("ab", values, strict=False)}
        line = template.format(r=name, **arrays, **given)
        error = self.side.execute(line)
        if error is not None:
            # so that errors are compared, but do not make up most of a program
            if self.rng.random() < 0.1:
                self.lines.append(line)
            return False
        made = self.side.names[name]
        if not self._fits(made):
            return False
        self.lines.append(line)
        for value in values:
            for used in value.views:
                self.uses[used] += 2 if twice else used == value.name
        shared = frozenset().union(*(v.views for v in values)) if views or twice else frozenset()
        self.uses[name] = 0
        self.values[name] = self._after(name, values, effect, made, shared | {name}, line)
        return True

    def _fits(self, made: Any) -> bool:
        if not isinstance(made, da.Array) or made.ndim > 6:
            return False
        try:
            tasks = len(made.dask)
        except ValueError:  # of blocks that do not fit each other, which dask finds out here
            return False
        few = made.npartitions <= MOST_BLOCKS and tasks <= MOST_TASKS
        return few and size_of(made) <= MOST_ELEMENTS

    def _after(
        self,
        name: str,
        values: list[Value],
        effect: str,
        made: Any,
        shared: frozenset[str],
        line: str,
    ) -> Value:
        bits = max((v.bits for v in values), default=2.0)
        size = max((size_of(self._array(v)) for v in values), default=1)
        bits = {
            "grows": 2 * bits
            + 2
            + math.log2(max(size, 2))
            * ("row_sums" in line or "sum" in line or "@" in line or "dot" in line),
            "sums": bits + math.log2(max(size, 2)),
            "products": bits * max(size, 1),
            "means": bits + math.log2(max(size, 2)),
        }.get(effect, bits + 1)
        state = max((v.state for v in values), key=ORDER.index, default="exact")
        significand = min((v.significand for v in values), default=53)
        for dtype in [made.dtype, *re.findall(r"dtype='([^']+)'", line)]:
            dtype = np.dtype(dtype)
            if dtype.kind in "fc":
                part = dtype.itemsize // (2 if dtype.kind == "c" else 1)
                significand = min(significand, SIGNIFICANDS[part])
        if "f4" in line or "float32" in line:
            significand = min(significand, 24)
        if effect == "rough" or (state != "exact" and effect in ADDING):
            state = "rough"
        elif effect in ("rounds", "means"):
            state = max(state, "rounded", key=ORDER.index)
        if bits > significand:
            state = max(state, "rough" if effect in ADDING else "rounded", key=ORDER.index)
        if made.dtype.kind == "O":
            state = max(state, "exact", key=ORDER.index)
        return Value(name, min(bits, 1e4), state, significand, shared)

    def _array(self, value: Value) -> da.Array:
        found: da.Array = self.side.names[value.name]
        return found

    def _is_masked(self, value: Value) -> bool:
        return isinstance(self._array(value)._meta, np.ma.MaskedArray)


ORDER = ("exact", "rounded", "rough")
#: Effects that add numbers up.
ADDING = ("sums", "products", "means", "grows")
GROUPS = {
    "elementwise": (7, Drawing.elementwise),
    "late": (3, Drawing.late),
    "slices": (2, Drawing.slices),
    "nothing": (4, Drawing.nothing),
    "parts": (2, Drawing.parts),
    "move": (3, Drawing.move),
    "copy": (2, Drawing.copy),
    "index": (4, Drawing.index),
    "reduction": (11, Drawing.reduction),
    "other": (5, Drawing.other),
    "blocks": (2, Drawing.blocks),
    "in_place": (2, Drawing.in_place),
    "mask": (1.5, Drawing.mask),
    "pair": (3, Drawing.pair),
    "statement": (2, Drawing.statement),
}
#: What the rules look for, line by line, groups each; None: any groups.
_WORK = ("elementwise", "nothing")
_ANY = tuple(GROUPS)
PLANS = (
    None,
    None,
    (("slices", "nothing"), _WORK, _WORK, ("reduction",), _WORK),
    (_WORK, _WORK, ("reduction",), ("elementwise", "statement", "index", "nothing")),
    (("reduction",), _WORK, ("reduction",)),
    (("slices", "nothing"), _WORK, _WORK, ("index",), _WORK),
    (("slices", "nothing"), _WORK, ("reduction", "other"), ("index",)),
    (_WORK, ("parts", "late"), ("reduction",), _WORK),
    (_WORK, ("late",), ("reduction", "index", "statement", "nothing"), _ANY),
    (("index", "move", "copy", "nothing"), _WORK, ("in_place", "blocks"), _ANY),
    (("mask", "elementwise"), ("reduction", "index", "late"), _ANY),
)


def draw_program(rng: Random, folder: Path) -> Program:
    """Draw a program over one or two frames."""
    return Drawing(rng, folder).program()


def without(program: Program, number: int) -> Program:
    """A program without one of its lines."""
    return replace(program, lines=program.lines[:number] + program.lines[number + 1 :])
