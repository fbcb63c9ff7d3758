"""What layers below hand to layers above, by name: imported when it is called, not before."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(module: str, name: str) -> Callable[..., Any]:
    """Make a function, or a method, of one that is imported when it is first called.

    Parameters
    ----------
    module, name : str
        Where it is: the name of a module in this package, and its name there.

    Examples
    --------
    >>> late("b2nd_dask.format.grid", "parse_selection")(0, (3,)).axes
    (range(0, 1),)
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call
