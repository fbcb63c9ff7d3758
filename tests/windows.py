"""Simulation of Python on Windows: removes the names that are missing there.

`python -m tests.windows PROGRAM [ARGUMENT]...` runs a function of `tests.storage.test_windows`.
"""

import importlib
import mmap
import os
import shutil
import sys
from pathlib import Path
from typing import Any

#: Names that Python on Windows lacks in 3.11 and 3.13; os.fchmod is new in 3.13.
MISSING = {
    os: (
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "chown",
        "copy_file_range",
        "fchmod",
        "fork",
        "getuid",
        "major",
        "posix_fadvise",
        "posix_fallocate",
        "pread",
        "preadv",
        "pwrite",
        "register_at_fork",
        "sched_getaffinity",
        "statvfs",
        "sysconf",
    ),
    mmap: ("MADV_HUGEPAGE", "MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED", "PROT_READ"),
}
#: Modules that stand on POSIX, and what other libraries had imported before.
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
LIBRARIES = (
    "dask.array",
    "distributed",
    "blosc2",
    "click",
    "fsspec.implementations.local",
    "psutil",
    "rich.console",
    "tempfile",
    "xarray",
    "zarr",
)
#: Without this flag files are opened as text.
BINARY = 1 << 30


def refuse(name: str, call: Any, *, takes_directories: bool) -> Any:
    """Wrap a call of `os` that takes no descriptors of directories."""

    def wrapped(path: Any = ".", *arguments: Any, **keywords: Any) -> Any:
        if isinstance(path, int) or any(keywords.pop(key, None) is not None for key in _FOLDERS):
            raise NotImplementedError(f"os.{name} of a descriptor of a directory")
        if not takes_directories and Path(path).is_dir():
            raise PermissionError(13, "Permission denied", path)
        return call(path, *arguments, **keywords)

    return wrapped


_FOLDERS = ("dir_fd", "src_dir_fd", "dst_dir_fd")


def become_windows() -> None:
    """Remove the missing names, after the import of libraries that support both systems."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for module, names in MISSING.items():
        for name in names:
            vars(module).pop(name, None)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    os.supports_dir_fd.clear()
    importlib.reload(shutil)
    open_file = os.open

    def open_binary(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        if "b2nd_dask" in sys._getframe(2).f_code.co_filename:
            assert flags & BINARY, f"{path} is opened as text"
        return open_file(path, flags & ~BINARY, *arguments, **keywords)

    os.O_BINARY = BINARY  # type: ignore[attr-defined]
    os.open = refuse("open", open_binary, takes_directories=False)
    for name in ("stat", "scandir", "unlink", "rename", "link"):
        setattr(os, name, refuse(name, getattr(os, name), takes_directories=True))


if __name__ == "__main__":
    become_windows()
    program = getattr(importlib.import_module("tests.storage.test_windows"), sys.argv[1])
    program(*sys.argv[2:])
