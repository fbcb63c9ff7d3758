"""Memory and CPU time of a process together with all that it started.

Memory is sampled, since no system keeps the peak of a sum: what rises and falls between two looks
is missed. Pages that processes share, such as libraries, count in each of them.
"""

from __future__ import annotations

import time

import psutil

#: Seconds between two looks at the memory.
INTERVAL = 0.05
#: Seconds between two looks for processes that are new: that reads of every process here.
LOOK_AGAIN = 0.5


class ProcessTree:
    """A process, and those that it started; the highest memory that was seen of all together."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._members = [self._root]
        self._looked = 0.0
        self._ended_cpu: dict[int, float] = {}
        self.peak = 0

    def resident(self) -> int:
        """Bytes; also kept as the peak where that is higher."""
        now = time.perf_counter()
        if now - self._looked > LOOK_AGAIN:
            self._look_for_members()
            self._looked = now
        total = sum(map(_resident, self._members))
        self.peak = max(self.peak, total)
        return total

    def forget_peak(self) -> None:
        self._looked = 0.0
        self.peak = 0
        self.resident()

    def cpu_seconds(self) -> float:
        """Of the processes that were seen, also those that have ended meanwhile."""
        self._look_for_members()
        for one in self._members:
            try:
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._ended_cpu[one.pid] = times.user + times.system
        return sum(self._ended_cpu.values())

    def _look_for_members(self) -> None:
        try:
            self._members = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            self._members = []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def kill_tree(pid: int) -> None:
    """Kill a process and all that it started."""
    root = psutil.Process(pid)
    for one in [*root.children(recursive=True), root]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
