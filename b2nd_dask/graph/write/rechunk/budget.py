"""The memory that the tasks of a rechunk share."""

from __future__ import annotations

from typing import Any

from b2nd_dask.frame.rechunk.one_pass import LEAST_BATCH, Budget
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.resources import available
from b2nd_dask.storage import Staging

#: Without `max_mem` a rechunk takes this part of the memory, and of each thread at most so much.
_SHARE, _MOST_OF_THREAD = 1 / 4, 512 << 20
#: Compressed bytes that are read at once of a store, if the memory allows.
_REMOTE_BATCH = 64 << 20


def budget_of(max_mem: Any, staging: Staging, *, is_remote: bool) -> Budget:
    """Divide the memory that a user states among threads and buffers; errors as for `nbytes_of`."""
    resources = available()
    if max_mem is None:
        most = min(resources.memory * _SHARE, resources.threads * _MOST_OF_THREAD)
    else:
        most = nbytes_of(max_mem)
    threads = max(1, resources.threads)
    most_batch = _REMOTE_BATCH if is_remote else 0
    return Budget(most, threads, LEAST_BATCH, staging.batch_nbytes, most_batch).of(most)


def nbytes_of(max_mem: Any) -> int:
    """Read a number of bytes, or a text such as ``"512MB"``.

    Raises
    ------
    ValueError
        No such text, or not a positive number.
    TypeError
        Neither a number nor a text.

    Examples
    --------
    >>> nbytes_of("512MB"), nbytes_of("1GiB"), nbytes_of(10**8)
    (512000000, 1073741824, 100000000)
    """
    if isinstance(max_mem, bool) or not isinstance(max_mem, int | float | str):
        raise TypeError(
            f'max_mem={max_mem!r}: give a number of bytes or a text such as "512MB", '
            f"not {type(max_mem).__name__}"
        )
    try:
        nbytes = int(_dask_compat.parse_bytes(max_mem))
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise ValueError(
            f"max_mem={max_mem!r} is no positive number of bytes; give one, or a text such as "
            '"512MB"'
        )
    return nbytes
