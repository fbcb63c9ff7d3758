"""The conditions of a measurement: machine, versions, load and time."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "b2nd-dask",
    "blosc2",
    "cubed",
    "dask",
    "dask-array",
    "distributed",
    "flox",
    "h5py",
    "hdf5plugin",
    "netCDF4",
    "numbagg",
    "numcodecs",
    "numpy",
    "tensorstore",
    "xarray",
    "zarr",
)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else os.cpu_count() or 1


def load() -> float:
    """Load average of the last minute; other programs disturb the times."""
    return float(psutil.getloadavg()[0])


def describe() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "revision": _revision(),
        "cpu": _cpu_model(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _revision() -> str:
    """Revision of the checkout, with a mark if files differ."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
