"""Resident memory of this process, and its peak.

On Linux the kernel has the peak (VmHWM) and can reset it, so each run has its own. `ru_maxrss` is
not suitable there, since a child inherits the value of its parent. Other systems have only that
value: the peak since the start of the process.
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
    """Only Linux has the value for another process."""
    if sys.platform == "linux":
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(kib) * 1024
    if pid != "self":
        return int(psutil.Process(int(pid)).memory_info().rss)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def touch(nbytes: int) -> None:
    """Use `nbytes` of memory for a moment.

    A virtual machine returns free memory to its host within seconds. The next process that needs
    much memory then pays for its return.
    """
    with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: mmap.PAGESIZE] = bytes(-(-nbytes // mmap.PAGESIZE))


def can_limit() -> bool:
    """Whether this system enforces `limit`: others accept it without effect."""
    return sys.platform == "linux"


def limit(size: int) -> None:
    """Limit the private memory of this process: larger allocations fail, without swapping.

    RLIMIT_DATA counts private writable mappings, touched or not, and neither libraries nor the page
    cache; RLIMIT_AS would count both. Unlike a control group it needs no privilege.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
