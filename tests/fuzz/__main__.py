"""Look for new cases: ``python -m tests.fuzz --seconds N --seed S``."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests import forked
from tests.fuzz.files import to_text
from tests.fuzz.probe import case
from tests.fuzz.run import run_batch, store_seeds
from tests.fuzz.seeds import make_seeds

BATCH = 500


def main() -> None:
    """Run batches until the time is over; each finding is stored as a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where findings go", default=Path("findings"))
    args = parser.parse_args()
    forked.preload()
    stop = time.monotonic() + args.seconds
    done = found = 0
    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder))
        path = store_seeds(seeds, Path(folder) / "seeds.json")
        while time.monotonic() < stop:
            for finding in run_batch(path, args.seed, done, BATCH):
                found += 1
                name, files = case(seeds, args.seed, finding.number)
                print(f"{args.seed}-{finding.number} ({name}): {finding.what}", flush=True)
                args.folder.mkdir(exist_ok=True)
                target = args.folder / f"{args.seed}-{finding.number}.json"
                target.write_text(to_text(files), "ascii")
            done += BATCH
    print(f"{done} mutations of {len(seeds)} frames, {found} findings")


if __name__ == "__main__":
    main()
