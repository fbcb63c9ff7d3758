"""Look for programs that differ: ``python -m tests.graph.programs --seconds N [--seed S]``."""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from pathlib import Path

from tests.graph.programs.search import search


def main() -> None:
    """Run programs until the time is over; print each that differs, as a test."""
    parser = argparse.ArgumentParser(prog="python -m tests.graph.programs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    args = parser.parse_args()
    stop = time.monotonic() + args.seconds
    number = found = 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < stop:
            for text in search(args.seed, range(number, number + 50), Path(folder)):
                found += 1
                print(text, flush=True)
            number += 50
    print(f"seed {args.seed}: {number} programs, {found} differ")


if __name__ == "__main__":
    main()
