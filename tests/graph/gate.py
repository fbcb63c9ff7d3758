"""Waiting: of the blocks of a write at a gate, until it is opened; of tests, until something is."""

import time
from contextlib import suppress
from pathlib import Path


def pass_gate(gate, first, of=""):
    """Wait until the file `gate` is there; some come through at once, whichever they are.

    `first` of each group that `of` tells apart.
    """
    for number in range(first):
        with suppress(FileExistsError):
            Path(f"{gate}.{of}.{number}").touch(exist_ok=False)
            return
    while not Path(gate).exists():
        time.sleep(0.02)


def eventually(condition):
    """Wait until something is true; returns it. On a busy machine that may take minutes."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")
