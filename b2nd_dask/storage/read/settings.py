"""Numbers of this package that users set: key "b2nd" of fsspec's configuration.

They come from its files, or from the environment, as FSSPEC_B2ND_READ_AHEAD.
"""

from __future__ import annotations

import math
from contextlib import suppress

CONCURRENCY = "concurrency"
"""Name of a setting: requests that a process has under way at the same time, of all its threads."""

LOW_SPEED = {"low_speed_limit": 10_000, "low_speed_time": 60}
"""A response may take so many seconds, and one more for each so many bytes: key "b2nd" of fsspec's
configuration, from its files or as FSSPEC_B2ND_LOW_SPEED_LIMIT and FSSPEC_B2ND_LOW_SPEED_TIME."""

READ_AHEAD = "read_ahead"
"""Name of a setting: bytes of requests and responses that a process may hold before
anybody reads them; 0 for no prefetch."""

SETTINGS = {**LOW_SPEED, CONCURRENCY: 64, READ_AHEAD: 64 << 20}


def requests_at_once() -> int:
    """The setting `CONCURRENCY` as a number of requests."""
    # infinite, too
    return math.ceil(min(setting(CONCURRENCY), 1 << 20))


def setting(name: str) -> float:
    """A number of this package in fsspec's configuration.

    Parameters
    ----------
    name : str
        One of `SETTINGS`.

    Raises
    ------
    ValueError
        It is set to something else.
    """
    # imported by who has a file system
    from fsspec.config import conf

    given = conf.get("b2nd", {}).get(name, SETTINGS[name])
    with suppress(TypeError, ValueError):
        if (number := float(given)) > 0 or (name == READ_AHEAD and number == 0):
            return number
    raise ValueError(f'{name}={given!r} in fsspec.config.conf["b2nd"] is no positive number')
