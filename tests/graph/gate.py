"""A gate for the blocks of a write: until it is opened, the write cannot end."""

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
