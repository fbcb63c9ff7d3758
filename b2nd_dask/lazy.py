"""Imports at first use: of functions of higher layers, and of the packages of extras."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(module: str, name: str) -> Callable[..., Any]:
    """Make a function or method that imports the real one from its module when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


def require(extra: str, package: str) -> ModuleType:
    """Import a package of an extra, or a module in it; ImportError has the command to install it.

    Examples
    --------
    >>> require("plot", "no_such_package.pyplot")
    Traceback (most recent call last):
    ImportError: no_such_package is not installed; install it with: pip install 'b2nd-dask[plot]'
    """
    root = package.partition(".")[0]
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        # the package is installed, but one of its own dependencies is missing
        if error.name is None or error.name.partition(".")[0] != root:
            raise
    # raised outside of the except clause, without the original error as its context
    raise ImportError(
        f"{root} is not installed; install it with: pip install 'b2nd-dask[{extra}]'", name=root
    )
