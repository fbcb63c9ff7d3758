"""Run a piece of Python in a process of bounded memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PRELUDE = """
import json, resource, sys
import numpy as np
from b2nd_dask import B2ndError, open_b2nd, from_b2nd
from b2nd_dask.format.values import unpack_value
from tests.frame.probe import address_space
# what is loaded at the first use is not what the input takes
import blosc2
open_b2nd(blosc2.zeros((4,)).to_cframe())[...]

def attempt(action):
    try:
        return str(action())
    except B2ndError as error:
        return f"{type(error).__name__}: {error}"

allowed = address_space() + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = int(used.ru_utime + used.ru_stime) + int(sys.argv[2]) + 1
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
"""


def run_limited(code: str, *, megabytes: int, seconds: int = 20, **values: Any) -> Any:
    """Run code that leaves its answer in `answer`; `values` are its variables.

    `attempt` in the code calls a function and gives what it gives, or its error of this package, as
    text. Any other error, a crash, and memory or processor time beyond what is given fail the test.
    """
    names = f"globals().update(json.loads({json.dumps(values)!r}))\n"
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{PRELUDE}{names}{code}\nprint(json.dumps(answer))",
            str(megabytes),
            str(seconds),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)
