"""Properties of the arrays of a program: how exact they are, and whose memory they share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Bits of the significands of floats, by size of their parts.
SIGNIFICANDS = {2: 11, 4: 24, 8: 53, 16: 64}
ORDER = ("exact", "rounded", "rough")
#: Effects that add numbers, and those whose results must be bitwise equal.
ADDING = ("sums", "products", "means", "grows", "bins")
JUMPING = ("jumps", "bins")


@dataclass(frozen=True)
class Value:
    """Properties of an array of a program."""

    name: str
    bits: float = 2
    """Bits of the largest number."""
    state: str = "exact"
    """exact, rounded or rough."""
    significand: int = 53
    """Bits of the significand of the narrowest floats that it is computed from."""
    views: frozenset[str] = frozenset()
    """Arrays whose memory this one may share, with its own name."""
    fresh: bool = False
    """Whether each task that needs its blocks makes new ones: reads, and work on reads alone."""
    written: bool = False
    """Whether a function wrote into blocks that are not fresh, so it must not run twice."""

    @property
    def precision(self) -> float:
        """0 for results that are exact, or always rounded equally."""
        return 2.0**-self.significand if self.state == "rough" else 0.0


@dataclass(frozen=True)
class Line:
    """Properties of a line: its arguments, and its effect on them."""

    text: str
    effect: str
    sizes: tuple[float, ...] = ()
    views: bool = False
    """Whether the result may share memory with them."""
    twice: bool = False
    """Whether their blocks go to several tasks."""
    fresh: bool = False
    """Whether it computes each block alone."""
    written: bool = False
    """Whether its function writes into blocks that other arrays may share."""

    def makes(self, name: str, values: Sequence[Value], made: Any) -> Value:
        """What is known of its result."""
        shared = frozenset[str]()
        if self.views or self.twice:
            shared = shared.union(*(v.views for v in values))
        bits = self._bits(values)
        significand = self._significand(values, made)
        return Value(
            name,
            min(bits, 1e4),
            self._state(values, bits, significand),
            significand,
            shared | {name},
            fresh=self.fresh and all(v.fresh for v in values),
            written=self.written or (self.views and any(v.written for v in values)),
        )

    def _bits(self, values: Sequence[Value]) -> float:
        bits = max((v.bits for v in values), default=2.0)
        length = math.log2(max([2, *self.sizes]))
        if self.effect == "grows":
            return 2 * bits + 2 + length * any(word in self.text for word in ("sum", "@", "dot"))
        if self.effect == "products":
            return bits * max([1, *self.sizes])
        return bits + (length if self.effect in ADDING else 1)

    def _significand(self, values: Sequence[Value], made: Any) -> int:
        significand = min((v.significand for v in values), default=53)
        for dtype in [made.dtype, *re.findall(r"dtype='([^']+)'", self.text)]:
            dtype = np.dtype(dtype)
            if dtype.kind in "fc":
                part = dtype.itemsize // (2 if dtype.kind == "c" else 1)
                significand = min(significand, SIGNIFICANDS[part])
        if "f4" in self.text or "float32" in self.text:
            significand = min(significand, 24)
        return significand

    def _state(self, values: Sequence[Value], bits: float, significand: int) -> str:
        state = max((v.state for v in values), key=ORDER.index, default="exact")
        if self.effect == "rough" or (state != "exact" and self.effect in ADDING):
            state = "rough"
        elif self.effect in ("rounds", "means", "bins"):
            state = max(state, "rounded", key=ORDER.index)
        if bits > significand:
            state = max(state, "rough" if self.effect in ADDING else "rounded", key=ORDER.index)
        return state
