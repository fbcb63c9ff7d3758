"""What has been written and does not yet lie on the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
#: Dirty bytes that do not disturb a run: logs and the like always leave some.
FEW_BYTES = 4 << 20
#: Seconds after which a run begins although other programs keep writing.
PATIENCE = 30.0
_INTERVAL = 0.1


def write_back() -> int:
    """Have the system write its dirty pages to the disk; the bytes that are dirty afterwards."""
    end = time.monotonic() + PATIENCE
    while True:
        os.sync()
        left = dirty_bytes()
        if left <= FEW_BYTES or time.monotonic() > end:
            return left
        time.sleep(_INTERVAL)


def dirty_bytes() -> int:
    """Bytes of the page cache that the disk does not have; 0 where the system does not say."""
    if not MEMINFO.exists():
        return 0
    fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Dirty", "Writeback"))


def sync(path: Path) -> None:
    """Bring a new file, or a folder with all that is in it, to the disk, and its name."""
    for folder, _, names in os.walk(path):
        for name in names:
            _fsync(Path(folder, name))
        _fsync(Path(folder))
    if path.is_file():
        _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
