"""What a thread did and a process took, by the kernel's count."""

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


def peak_memory():
    """Most bytes of memory that this process had at once, since its program began.

    What `resource.getrusage` says is at least what the process that started it had.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])
