"""Resident memory of this process, and its peak.

On Linux the kernel keeps the peak (VmHWM), and forgets it when asked to, so that each run has its
own. `ru_maxrss` would not do there: a child starts with the value of the process it came from.
Elsewhere it is what there is: the peak since the process began.
"""

from __future__ import annotations

import mmap
import resource
import sys
from pathlib import Path

import psutil

_FORGET_PEAK = "5"


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def forget_peak(pid: int | str = "self") -> None:
    if sys.platform == "linux":
        Path(f"/proc/{pid}/clear_refs").write_text(_FORGET_PEAK)


def peak_resident(pid: int | str = "self") -> int:
    """Of another process than this one the kernel tells only on Linux."""
    if sys.platform == "linux":
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(kib) * 1024
    if pid != "self":
        return int(psutil.Process(int(pid)).memory_info().rss)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def touch(nbytes: int) -> None:
    """Use so much memory for a moment.

    A virtual machine gives free memory back to its host within seconds. The next process that wants
    much pays for getting it again, whichever that is.
    """
    with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: mmap.PAGESIZE] = bytes(-(-nbytes // mmap.PAGESIZE))


def can_limit() -> bool:
    """Whether `limit` holds here: other systems take the limit and do not keep it."""
    return sys.platform == "linux"


def limit(size: int) -> None:
    """Bound the private memory of this process: what is more is refused, not swapped out.

    RLIMIT_DATA counts private writable mappings, touched or not, and neither libraries nor the page
    cache; RLIMIT_AS would count both. Unlike a control group it needs no right to make one.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
