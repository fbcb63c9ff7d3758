"""What a user asks a conversion to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from b2nd_dask.edges.convert.lazy import Budget

#: Takes how many blocks are done, and of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    """Options that all writers take."""

    budget: Budget
    chunks: Any = None
    blocks: Any = None
    cparams: Any = None
    progress: Progress | None = None

    def chunks_of(self, shape: tuple[int, ...], default: tuple[int, ...]) -> tuple[int, ...]:
        """Elements of a chunk of the target along each axis.

        Raises
        ------
        ValueError
            The user's chunks are no positive numbers, or not one for each axis.
        """
        sizes = default if self.chunks is None else self.chunks
        sizes = (sizes,) * len(shape) if isinstance(sizes, int) else tuple(sizes)
        if len(sizes) != len(shape) or any(size < 1 and size != -1 for size in sizes):
            raise ValueError(
                f"chunks={self.chunks!r}: give a positive number for each of {len(shape)} axes"
            )
        return tuple(
            max(1, n if size == -1 else min(size, n)) for size, n in zip(sizes, shape, strict=True)
        )
