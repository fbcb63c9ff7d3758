"""Packages of extras: imported at first use; the error for a missing one names its extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(extra: str, package: str) -> ModuleType:
    """Import a package of an extra, or a module in it; an ImportError says how to install it.

    Examples
    --------
    >>> require("plot", "no_such_package.pyplot")
    Traceback (most recent call last):
    ImportError: no_such_package is not installed; install it with: pip install 'b2nd-dask[plot]'
    """
    root = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # the package is installed, but one of its own dependencies is missing
        if error.name is None or error.name.partition(".")[0] != root:
            raise
    # raised outside of the except clause, without the original error as its context
    raise ImportError(
        f"{root} is not installed; install it with: pip install 'b2nd-dask[{extra}]'", name=root
    )
