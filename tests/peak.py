"""The memory that a piece of Python takes at its peak, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PRELUDE = """
import json, sys
import dask, dask.array as da, numpy as np
import blosc2, b2nd_dask
from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from benchmarks.memory import forget_peak, peak_resident, resident
# what is loaded at the first use is not what the work takes
from_b2nd(blosc2.zeros((4,)).to_cframe()).compute()
"""


def peak_growth(code: str, *, before: str = "", config: Any = None, **values: Any) -> int:
    """Bytes of resident memory by which the peak of `code` exceeds what was there before.

    `values` are variables of the code, `config` is dask's; `before` runs first and does not count.
    Two threads compute.
    """
    config = {"scheduler": "threads", "num_workers": 2} | (config or {})
    setup = f"globals().update(json.loads({json.dumps(values)!r}))\ndask.config.set({config!r})\n"
    measure = "forget_peak()\nstart = resident()\n"
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{PRELUDE}{setup}{before}\n{measure}{code}\nprint(peak_resident() - start)",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return int(process.stdout.split()[-1])
