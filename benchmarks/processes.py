"""Memory and CPU time of a process and all its descendants.

Memory is sampled, since no system has the peak of a sum: a peak between two samples is missed.
Pages that processes share, such as libraries, count in each of them.
"""

from __future__ import annotations

import time

import psutil

#: Seconds between two samples of the memory.
INTERVAL = 0.05
#: Seconds between two searches for new processes, which read all processes of the machine.
LOOK_AGAIN = 0.5


class ProcessTree:
    """A process and its descendants; the peak of their total memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._members = [self._root]
        self._looked = 0.0
        self._ended_cpu: dict[int, float] = {}
        self.peak = 0

    def resident(self) -> int:
        """Current bytes; also updates the peak."""
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
        """CPU time of all known processes, also of ended ones."""
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
    """Kill a process and its descendants."""
    root = psutil.Process(pid)
    for one in [*root.children(recursive=True), root]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
