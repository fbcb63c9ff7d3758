"""What a thread did, by the kernel's count."""

from pathlib import Path


def bytes_read(function):
    """Bytes that this thread read while `function` ran, by the kernel's count.

    The process has other threads, of servers and clusters that other tests have used.
    """

    def count():
        return int(Path("/proc/thread-self/io").read_text().split()[1])

    count()
    overhead = -count() + count()
    before = count()
    result = function()
    return count() - before - overhead, result
