"""What a user asks a conversion to be."""

from __future__ import annotations

from collections.abc import Mapping
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

    def given(self, name: str, ndim: int) -> Any:
        """Chunks or blocks of an array; with another number of axes they are meant for others."""
        sizes = getattr(self, name)
        return None if isinstance(sizes, tuple | list) and len(sizes) != ndim else sizes

    def chunks_of(self, shape: tuple[int, ...], default: tuple[int, ...]) -> tuple[int, ...]:
        """Elements of a chunk of the target along each axis."""
        sizes = self.given("chunks", len(shape)) or default
        sizes = (sizes,) * len(shape) if isinstance(sizes, int) else sizes
        return tuple(
            max(1, n if size == -1 else min(size, n)) for size, n in zip(sizes, shape, strict=True)
        )

    def check_sizes(self, tree: Tree) -> None:
        """Check the user's chunks and blocks.

        Raises
        ------
        ValueError
            They are no positive numbers, or no array has as many axes.
        """
        axes = sorted({member.array.ndim for _, member in tree.walk()})
        for name in ("chunks", "blocks"):
            sizes = getattr(self, name)
            if sizes is None:
                continue
            numbers = sizes if isinstance(sizes, tuple | list) else (sizes,)
            if not all(isinstance(n, int) and (n > 0 or n == -1) for n in numbers):
                raise ValueError(f"{name}={sizes!r}: give positive numbers, or -1 for a whole axis")
            if isinstance(sizes, tuple | list) and len(numbers) not in axes:
                raise ValueError(
                    f"{name}={sizes!r}: {len(numbers)} numbers, and arrays of {tree.label} have "
                    f"{' or '.join(map(str, axes))} axes"
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


def settings_of(cparams: Any) -> dict[str, Any]:
    """Compression that is named as for frames, by names."""
    return (
        dict(cparams) if isinstance(cparams, Mapping) else {} if cparams is None else vars(cparams)
    )


def name_of(choice: Any) -> str:
    """Name of a codec or filter, which may be one of python-blosc2."""
    return str(getattr(choice, "name", choice)).lower()
