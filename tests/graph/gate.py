"""Waiting: blocks of a write wait at a gate until it opens, tests wait for a condition."""

import time
from contextlib import suppress
from pathlib import Path


def pass_gate(gate, first, of=""):
    """Wait until the file `gate` exists.

    The first `first` callers of each group `of` pass at once.
    """
    for number in range(first):
        with suppress(FileExistsError):
            Path(f"{gate}.{of}.{number}").touch(exist_ok=False)
            return
    while not Path(gate).exists():
        time.sleep(0.02)


def eventually(condition):
    """Wait until a condition is true, and return its value; may take minutes on a busy machine."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")
