"""The libraries whose arrays programs are made of: dask.array, and dask-array."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import dask
import dask.array as da

FRONT_ENDS = ("dask", "dask-array")


@dataclass(frozen=True)
class FrontEnd:
    """The library that ``da`` means in programs, and how frames become its arrays."""

    module: ModuleType
    options: dict[str, Any] = field(default_factory=dict)
    """Of `from_b2nd`."""
    complete: bool = True
    """Whether a program that fails over arrays in memory must also fail over frames."""

    def optimize(self, *arrays: Any) -> tuple[Any, ...]:
        """The arrays, optimized: together where the library does so."""
        if self.complete:
            return dask.optimize(*arrays)
        return tuple(a.optimize() if self.has_made(a) else a for a in arrays)

    def has_made(self, value: Any) -> bool:
        """Whether a value is an array of this library."""
        return isinstance(value, self.module.Array)


@functools.cache
def front_end(name: str) -> FrontEnd:
    """One of `FRONT_ENDS`."""
    if name == "dask":
        return FrontEnd(da)
    threshold = "array.rechunk.threshold"
    # where it is imported it changes a default of dask.array, too
    with dask.config.set({threshold: dask.config.get(threshold)}):
        module = importlib.import_module("dask_array")
    return FrontEnd(module, {"array_type": name}, complete=False)
