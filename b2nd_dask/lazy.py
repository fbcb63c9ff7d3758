"""Functions of layers above, named by layers below: imported when they are called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(module: str, name: str) -> Callable[..., Any]:
    """Make a function, or a method, that imports its definition when it is called.

    Parameters
    ----------
    module, name : str
        Where it is: the name of a module in this package, and its name there.

    Examples
    --------
    >>> lazy("b2nd_dask.format.grid", "parse_selection")(0, (3,)).axes
    (range(0, 1),)
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call
