"""Differences between processes of a cluster: versions of this package, visible files.

A pickle names classes and fields, which may differ in another version: loading it raises an
AttributeError or returns wrong values. So the pickle of each object of a task starts with a stamp
of the version.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from b2nd_dask import _version
from b2nd_dask.errors import VersionMismatchError

logger = logging.getLogger("b2nd_dask")


def here() -> str:
    """Name this process for messages, by host and process id."""
    return f"host {socket.gethostname()}, process {os.getpid()}"


def unseen(error: OSError, path: str, advice: str) -> OSError:
    """Copy an OSError; add this process, which does not see a path that other processes see."""
    problem = f"{error.strerror or error}, seen from {here()}: {advice}"
    return type(error)(error.errno, problem, path)


class _Stamp:
    """The version of this process; unpickles as an error text, empty if the versions match."""

    def __reduce__(self) -> tuple[Any, ...]:
        return problem_with, (_version.__version__,)


STAMP = _Stamp()


def problem_with(version: str) -> str:
    """Compare versions with the process that pickled an object; describe a mismatch, else empty."""
    own = _version.__version__
    if version == own:
        return ""
    problem = (
        f"b2nd-dask {version} sent this to {here()}, which has b2nd-dask {own}: install one "
        "version for the client, the scheduler and all workers"
    )
    # logged, since the rest of the pickle may not load in this version
    logger.error("%s", problem)
    return problem


class FromOtherVersion:
    """Placeholder for an object of another version; raises VersionMismatchError when used.

    Unpickling must not raise: a worker of distributed that cannot unpickle a task ends, and its
    tasks move to the next worker. A scheduler that cannot unpickle a graph does not say why.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return FromOtherVersion, (self._problem,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # a protocol that this object does not support
            raise AttributeError(name)
        raise VersionMismatchError(self._problem)

    def __getitem__(self, index: Any) -> Any:
        raise VersionMismatchError(self._problem)


def reduced(make: Callable[..., Any], *fields: object) -> tuple[Any, ...]:
    """Return a `__reduce__` value with a stamp, for an object that ``make(*fields)`` rebuilds.

    Such pickles name functions of this module: every version of the package must have them.
    """
    return rebuilt, (STAMP, make, *fields)


def rebuilt(problem: str, make: Callable[..., Any], *fields: object) -> Any:
    """Rebuild an object with a stamp; return a placeholder if the versions differ."""
    return FromOtherVersion(problem) if problem else make(*fields)
