"""Run a piece of Python in a process of bounded memory and time."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import blosc2
import numpy as np

from b2nd_dask import B2ndError, from_b2nd, open_b2nd
from b2nd_dask.format.values import unpack_value
from tests.forked import run_forked
from tests.frame.probe import address_space

if TYPE_CHECKING:
    from collections.abc import Callable


def attempt(action: Callable[[], Any]) -> str:
    """Call a function; return its result, or an error of this package, as text."""
    try:
        return str(action())
    except B2ndError as error:
        return f"{type(error).__name__}: {error}"


def _limit(megabytes: int, seconds: int) -> None:
    """Limit the further memory and time of this process."""
    # loads modules before the limit is set
    open_b2nd(blosc2.zeros((4,)).to_cframe())[...]
    allowed = address_space() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = resource.getrusage(resource.RUSAGE_SELF)
    allowed = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))


def _answer(code: str, megabytes: int, seconds: int, values: dict[str, Any]) -> Any:
    names = {
        "np": np,
        "from_b2nd": from_b2nd,
        "open_b2nd": open_b2nd,
        "unpack_value": unpack_value,
        "attempt": attempt,
        **values,
    }
    _limit(megabytes, seconds)
    exec(compile(code, "<limited>", "exec"), names)
    return names["answer"]


def run_limited(code: str, *, megabytes: int, seconds: int = 20, **values: Any) -> Any:
    """Run code that sets `answer`; `values` are its variables.

    `attempt` in the code calls a function and returns its result, or an error of this package, as
    text. Any other error, a crash, or use of more memory or CPU time fails the test.
    """
    return run_forked(_answer, code, megabytes, seconds, values)
