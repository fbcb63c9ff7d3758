"""Written bytes that are not yet on the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
#: Dirty bytes that do not disturb a run: logs always leave some.
FEW_BYTES = 4 << 20
#: Seconds after which a run begins even if other programs write.
PATIENCE = 30.0
_INTERVAL = 0.1


def write_back() -> int:
    """Let the system write its dirty pages to the disk; return the bytes that are still dirty."""
    end = time.monotonic() + PATIENCE
    while True:
        os.sync()
        left = dirty_bytes()
        if left <= FEW_BYTES or time.monotonic() > end:
            return left
        time.sleep(_INTERVAL)


def dirty_bytes() -> int:
    """Bytes of the page cache that are not on the disk; 0 if unknown."""
    if not MEMINFO.exists():
        return 0
    fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Dirty", "Writeback"))


def sync(path: Path) -> None:
    """Sync a new file, or a folder with its contents, and its name to the disk."""
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
