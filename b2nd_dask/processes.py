"""Processes of a cluster that differ: in the version of this package, in the files that they see.

A pickle names classes and their fields, and those of another version end in an AttributeError, or
in a wrong value. So what tasks carry is pickled behind a stamp of the version, which is unpickled
before anything else.
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
    """Name this process in messages: its host and its number."""
    return f"host {socket.gethostname()}, process {os.getpid()}"


def unseen(error: OSError, path: str, advice: str) -> OSError:
    """Make an error of the system say which process does not see what others see."""
    problem = f"{error.strerror or error}, seen from {here()}: {advice}"
    return type(error)(error.errno, problem, path)


class _Stamp:
    """The version of this process; unpickles as what is wrong with it, empty if it is the same."""

    def __reduce__(self) -> tuple[Any, ...]:
        return problem_with, (_version.__version__,)


STAMP = _Stamp()


def problem_with(version: str) -> str:
    """Describe what is wrong where another version of this package has pickled something."""
    own = _version.__version__
    if version == own:
        return ""
    problem = (
        f"b2nd-dask {version} sent this to {here()}, which has b2nd-dask {own}: install one "
        "version for the client, the scheduler and all workers"
    )
    # what comes next in the pickle may not be there in this version
    logger.error("%s", problem)
    return problem


class FromOtherVersion:
    """Stands for an object of another version; raises VersionMismatchError where it is used.

    Not where it is unpickled: a worker of distributed that cannot unpickle a task ends, and its
    tasks go on to the next.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return FromOtherVersion, (self._problem,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # of protocols that this object does not have
            raise AttributeError(name)
        raise VersionMismatchError(self._problem)

    def __getitem__(self, index: Any) -> Any:
        raise VersionMismatchError(self._problem)


def reduced(make: Callable[..., Any], *fields: object) -> tuple[Any, ...]:
    """Result of `__reduce__` for an object that is made by ``make(*fields)`` and used in tasks.

    Every version of this package must have the functions of such pickles in this module.
    """
    return rebuilt, (STAMP, make, *fields)


def reduced_strictly(make: Callable[..., Any], *fields: object) -> tuple[Any, ...]:
    """As `reduced`, for parts of graphs: a scheduler reports what it cannot unpickle."""
    return rebuilt_strictly, (STAMP, make, *fields)


def rebuilt(problem: str, make: Callable[..., Any], *fields: object) -> Any:
    """Make an object behind a stamp."""
    return FromOtherVersion(problem) if problem else make(*fields)


def rebuilt_strictly(problem: str, make: Callable[..., Any], *fields: object) -> Any:
    """Make an object behind a stamp; raise VersionMismatchError for another version."""
    if problem:
        raise VersionMismatchError(problem)
    return make(*fields)
