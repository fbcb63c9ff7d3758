"""What may be replaced: arrays, and nothing else that a user keeps under a name."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from b2nd_dask.format.labels.manifest import MANIFEST
from b2nd_dask.storage import printable

#: One of these is in the directory of every dataset, store, sparse frame and zarr.
_MARKERS = {MANIFEST, "embed.b2e", "chunks.b2frame", "zarr.json", ".zgroup", ".zarray"}
#: Names of the other files in them.
_PARTS = re.compile(r".+\.(b2nd|b2e|b2f|b2d|b2z|chunk|lock)|\.z(attrs|metadata)", re.DOTALL)
#: Names of chunks of zarr, in the directory of an array or inside of it.
_ZARR_CHUNK = re.compile(r"c|(c\.)?\d+(\.\d+)*")
_ZARR_ARRAY = {"zarr.json", ".zarray"}
#: What a change that was killed leaves in a dataset.
_LEFT_FOLDER = re.compile(r"\..+\.[0-9a-f]{16}\.(staging|removed)", re.DOTALL)
_LEFT_FILE = f".{MANIFEST}.new"
#: How files of arrays begin: npy, zip, HDF5; frames from their third byte on.
_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06", b"\x89HDF\r\n\x1a\n")
_FRAME_MAGIC = b"b2frame\0"


def require_replaceable(target: Path) -> None:
    """Check that there is nothing, or nothing but arrays.

    Raises
    ------
    FileExistsError
        A file that holds no arrays; a directory that is no dataset, or has other files in it.
    """
    if target.is_dir():
        _require_dataset(target)
    elif target.exists():
        _require_array_file(target)


def _require_array_file(target: Path) -> None:
    # of a pipe nothing is waited for
    fd = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    try:
        begin = os.read(fd, 16)
    finally:
        os.close(fd)
    if begin and not begin.startswith(_MAGIC) and begin[2:10] != _FRAME_MAGIC:
        raise _refused(target, "a file", "it holds no arrays")


def _require_dataset(target: Path) -> None:
    present = set(os.listdir(target))  # noqa: PTH208 - names
    if present and not present & _MARKERS:
        raise _refused(
            target,
            "a directory",
            f"it is no dataset, though it may hold some: it has no {MANIFEST}",
        )

    def refuse(error: OSError) -> None:
        raise error

    of_zarr: set[str] = set()
    for folder, folders, names in os.walk(target, onerror=refuse):
        if _ZARR_ARRAY & set(names) or os.path.dirname(folder) in of_zarr:  # noqa: PTH120 - text
            of_zarr.add(folder)
        folders[:] = [name for name in folders if _LEFT_FOLDER.fullmatch(name) is None]
        for name in names:
            if not _is_part(name, in_zarr=folder in of_zarr):
                where = printable(os.path.relpath(Path(folder, name), target))
                raise _refused(
                    target, "a directory", f"it has a file that belongs to no dataset ({where})"
                )


def _is_part(name: str, *, in_zarr: bool) -> bool:
    if name in _MARKERS or name == _LEFT_FILE or _PARTS.fullmatch(name):
        return True
    return in_zarr and _ZARR_CHUNK.fullmatch(name) is not None


def _refused(target: Path, kind: str, why: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST,
        f"it is {kind} that is not replaced, since {why}; choose another name, or move it away",
        str(target),
    )
