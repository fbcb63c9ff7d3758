"""Arguments of templates, drawn for an array."""

from __future__ import annotations

import math
import string
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random


def draw_arguments(rng: Random, array: Any) -> dict[str, Any]:
    """Draw a value for each name that a template may have, except for arrays."""
    shape = tuple(0 if math.isnan(n) else n for n in array.shape)
    axis = rng.randrange(-len(shape), len(shape)) if shape else 0
    letters = string.ascii_lowercase[: len(shape)]
    n = shape[0] if shape else 1
    last = shape[-1] if shape else 1
    # of an axis without elements there may be no blocks
    block = tuple(along[0] if along else 0 for along in array.chunks)
    width = block[0] if shape and rng.random() < 0.8 else rng.randint(1, 4)
    points = [[rng.randrange(-max(m, 1), max(m, 1)) for _ in range(3)] for m in shape]
    return {
        "n": n,
        "last": last,
        "length": shape[axis] if shape else 1,
        "axis": axis,
        "axes": _draw_axes(rng, len(shape)),
        "perm": tuple(rng.sample(range(len(shape)), len(shape))),
        "target": draw_chunks(rng, shape),
        "other": draw_chunks(rng, shape),
        "cut": rng.randint(0, n),
        "width": width,
        "merged": (math.prod(shape[:2]), *shape[2:]),
        "index": _draw_index(rng, shape),
        "slices": ", ".join(_draw_slice(rng, m) for m in shape) or "...",
        "list": _draw_list(rng, n),
        "last_list": _draw_list(rng, last),
        "points": str(points)[1:-1],
        "of": repr(letters),
        "to": repr(letters[:-1]),
        "block": block,
    }


def draw_chunks(rng: Random, shape: tuple[int, ...], least: int = 1) -> tuple[Any, ...]:
    """Draw chunks for a shape, uneven ones along its first axis, too: of at least some rows."""
    if shape and shape[0] >= 2 * least and rng.random() < 0.3:
        n = shape[0]
        cut = rng.randint(least, n - least)
        return ((cut, n - cut), *shape[1:])
    return tuple(rng.randint(max(1, n // 4), max(n, 1)) for n in shape)


def _draw_axes(rng: Random, ndim: int) -> Any:
    if not ndim or rng.random() < 0.4:
        return None
    axes = rng.sample(range(ndim), rng.randint(1, ndim))
    return rng.choice([axes[0], axes[0] - ndim, tuple(axes)])


def _draw_list(rng: Random, n: int) -> list[int]:
    return [rng.randrange(-n, n) for _ in range(rng.randint(1, 5))] if n else []


def _draw_slice(rng: Random, n: int) -> str:
    start = rng.choice(["", rng.randint(0, n // 2), rng.randint(-n, n)])
    stop = rng.choice(["", "", rng.randint(-n, n + 2)])
    return f"{start}:{stop}" + rng.choice(["", "", ":2", ":3"])


def _draw_index(rng: Random, shape: tuple[int, ...]) -> str:
    parts = []
    for n in shape:
        kind = rng.choice(["all", "slice", "slice", "one", "step", "new", "list"])
        if kind == "slice":
            parts.append(_draw_slice(rng, n))
        elif kind == "step":
            parts.append(f"{rng.randint(-n, n)}::{rng.choice([2, 3, -1, -2])}")
        elif kind == "one" and n:
            parts.append(str(rng.randint(-n, n - 1)))
        elif kind == "list" and n and not any("[" in part for part in parts):
            parts.append(str(_draw_list(rng, n)))
        else:
            parts += ["None"] * (kind == "new") + [":"]
    return ", ".join(parts) or "..."
