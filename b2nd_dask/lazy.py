"""Calls from lower layers to functions of higher layers, which are imported at the call."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(module: str, name: str) -> Callable[..., Any]:
    """Make a function or method that imports its definition when it is called.

    Parameters
    ----------
    module, name : str
        Names of a module of this package and of a function in it.

    Examples
    --------
    >>> lazy("b2nd_dask.format.grid", "parse_selection")(0, (3,)).axes
    (range(0, 1),)
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call
