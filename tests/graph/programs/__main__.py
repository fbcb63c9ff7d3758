"""Look for programs that differ: ``python -m tests.graph.programs --seconds N [--seed S]``."""

from __future__ import annotations

import argparse
import itertools
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.graph.programs.front_ends import FRONT_ENDS
from tests.graph.programs.search import search


def main() -> None:
    """Run programs until the time is over; print each that differs, as a test."""
    parser = argparse.ArgumentParser(prog="python -m tests.graph.programs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--front-end", choices=FRONT_ENDS, default=FRONT_ENDS[0])
    parser.add_argument(
        "--distributed", action="store_true", help="compute half of them by a small cluster"
    )
    args = parser.parse_args()
    numbers = _Numbers(args.seconds)
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        for text in search(
            args.seed, numbers, Path(folder), args.front_end, distributed=args.distributed
        ):
            found += 1
            print(text, flush=True)
    print(f"seed {args.seed}: {numbers.given} programs, {found} differ")


class _Numbers:
    """Numbers of programs, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.given = 0
        self._stop = time.monotonic() + seconds

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            if time.monotonic() > self._stop:
                return
            self.given = number + 1
            yield number


if __name__ == "__main__":
    main()
