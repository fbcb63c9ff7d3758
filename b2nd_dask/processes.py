"""Processes of a cluster that differ: in the version of this package, in the files that they see.

A pickle names classes and their fields, and those of another version end in an AttributeError, or
in a wrong value. So what tasks carry is pickled behind a stamp of the version, which is unpickled,
and checked, before anything else.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from b2nd_dask import _version
from b2nd_dask.errors import VersionMismatchError


def here() -> str:
    """Name this process in messages: its host and its number."""
    return f"host {socket.gethostname()}, process {os.getpid()}"


def unseen(error: OSError, path: str, advice: str) -> OSError:
    """Make an error of the system say which process does not see what others see."""
    problem = f"{error.strerror or error}, seen from {here()}: {advice}"
    return type(error)(error.errno, problem, path)


class _Stamp:
    """The version of this process; unpickles in processes of the same version only."""

    def __reduce__(self) -> tuple[Any, ...]:
        return check_sender, (_version.__version__,)


STAMP = _Stamp()


def check_sender(version: str) -> _Stamp:
    """Raise VersionMismatchError where another version of this package has pickled something."""
    own = _version.__version__
    if version != own:
        raise VersionMismatchError(
            f"b2nd-dask {version} sent this to {here()}, which has b2nd-dask {own}: install one "
            "version for the client, the scheduler and all workers"
        )
    return STAMP


def reduced(make: Callable[..., Any], *fields: object) -> tuple[Any, ...]:
    """Result of `__reduce__` for an object that is made by ``make(*fields)``.

    Every version of this package must have `check_sender` and `rebuilt` in this module.
    """
    return rebuilt, (STAMP, make, *fields)


def rebuilt(stamp: _Stamp, make: Callable[..., Any], *fields: object) -> Any:
    """Make an object behind a stamp that was checked."""
    return make(*fields)
