"""What a user asks a conversion to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from b2nd_dask.edges.convert.lazy import Budget, unit_of
from b2nd_dask.edges.datasets.tree import Tree
from b2nd_dask.edges.progress import Progress


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

        Chunks with another number of axes are meant for other arrays of the source.
        """
        sizes = default if self.chunks is None else self.chunks
        sizes = (sizes,) * len(shape) if isinstance(sizes, int) else tuple(sizes)
        if len(sizes) != len(shape):
            sizes = default
        return tuple(
            max(1, n if size == -1 else min(size, n)) for size, n in zip(sizes, shape, strict=True)
        )

    def check_chunks(self, tree: Tree) -> None:
        """Check the user's chunks.

        Raises
        ------
        ValueError
            They are no positive numbers, or no array has as many axes.
        """
        if self.chunks is None:
            return
        numbers = self.chunks if isinstance(self.chunks, tuple | list) else (self.chunks,)
        if not all(isinstance(n, int) and (n > 0 or n == -1) for n in numbers):
            raise ValueError(
                f"chunks={self.chunks!r}: give positive numbers, or -1 for a whole axis"
            )
        axes = sorted({member.array.ndim for _, member in tree.walk()})
        if isinstance(self.chunks, tuple | list) and len(numbers) not in axes:
            raise ValueError(
                f"chunks={self.chunks!r}: {len(numbers)} numbers, and arrays of "
                f"{tree.label} have {' or '.join(map(str, axes))} axes"
            )

    def check_memory(self, tree: Tree) -> None:
        """Check that a chunk of each array, of the source and of the target, fits into the memory.

        Raises
        ------
        ValueError
            It does not.
        """
        for path, member in tree.walk():
            array = member.array
            of_source = unit_of(array)
            for unit in (of_source, self.chunks_of(array.shape, of_source)):
                self.budget.check(path or tree.label, unit, array.dtype.itemsize)
