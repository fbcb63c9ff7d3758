"""Arrays and groups of other libraries that `to_b2nd` takes with all that belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da


@dataclass(frozen=True)
class LabelledArray:
    """An array, not read yet, with the metadata of its frame."""

    array: da.Array
    vlmeta: Mapping[str, Any]


@dataclass(frozen=True)
class OwnWriter:
    """An object that is not written as one array, or not as elements alone."""

    write: Callable[[str, Mapping[str, Any]], Any]
    """Takes the path and the options of `to_b2nd` that differ from their defaults."""


Adapter = Callable[[Any], LabelledArray | OwnWriter | None]
_adapters: dict[str, Adapter] = {}


def register(package: str, adapter: Adapter) -> None:
    """Let `to_b2nd` ask an adapter about all objects of a package, which is not imported for it."""
    _adapters[package] = adapter


def adapted(given: Any) -> LabelledArray | OwnWriter | None:
    """Ask the adapter of an object's package; None where there is none, or it does not know it."""
    package = type(given).__module__.partition(".")[0]
    adapter = _adapters.get(package)
    return None if adapter is None else adapter(given)
