"""Reads of a thread, counted by the kernel."""

from pathlib import Path


def bytes_read(function):
    """Bytes that this thread read while `function` ran, counted by the kernel.

    The process has other threads, of servers and clusters of other tests.
    """

    def count():
        return int(Path("/proc/thread-self/io").read_text().split()[1])

    count()
    overhead = -count() + count()
    before = count()
    result = function()
    return count() - before - overhead, result
