"""Check before a target is replaced: it must hold only frames, or only arrays of any format."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zipfile
from pathlib import Path

from b2nd_dask.format.header import MAGIC
from b2nd_dask.format.manifest import MANIFEST
from b2nd_dask.frame.members.store import EMBED
from b2nd_dask.storage import MAIN_MEMBER, printable

#: One of these lies at the top of every dataset, store and sparse frame.
_OF_FRAMES = frozenset((MANIFEST, EMBED, MAIN_MEMBER))
#: By whether arrays of other formats count, too.
_MARKERS = {False: _OF_FRAMES, True: _OF_FRAMES | {"zarr.json", ".zgroup", ".zarray"}}
_WHAT = {False: "frames", True: "arrays"}
#: Names of the other files in datasets, stores and sparse frames.
_PARTS = re.compile(r".+\.(b2nd|b2e|b2f|b2d|b2z|chunk|lock)|\.z(attrs|metadata)", re.DOTALL)
#: Names of the chunk folders and chunk files in the folder of a zarr array.
_ZARR_CHUNK = re.compile(r"c|(c\.)?\d+(\.\d+)*")
#: Folders and the file that a killed append leaves in a dataset.
_LEFT_FOLDER = re.compile(r"\..+\.[0-9a-f]{16}\.(staging|removed|old)", re.DOTALL)
_LEFT_FILE = f".{MANIFEST}.new"
#: First bytes of npy, HDF5 and NetCDF-3 files; a frame has its magic at offset 2.
_HEADS = (b"\x93NUMPY", b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05")
#: HDF5 may start after a user block: 512 bytes in files of MATLAB.
_USER_BLOCK_NBYTES = 512
#: Most bytes of the `zarr.json` of an array.
_MAX_JSON_NBYTES = 16 << 20


def require_replaceable(target: Path, *, any_format: bool) -> None:
    """Raise FileExistsError for a target that holds more than frames, or arrays of any format."""
    if not os.path.lexists(target):
        return
    mode, problem = target.stat().st_mode, ""
    if stat.S_ISDIR(mode):
        problem = _problem_of_directory(target, any_format)
    elif not stat.S_ISREG(mode):
        problem = "the path is neither a file nor a directory"
    elif not _may_replace(target, any_format):
        problem = f"the file holds no {_WHAT[any_format]}"
    if problem:
        raise FileExistsError(
            errno.EEXIST,
            f"{problem}, so it is not replaced; choose another name, or move it away yourself",
            str(target),
        )


def _may_replace(path: Path, any_format: bool) -> bool:
    """Whether a file is empty or starts like a frame, or like an array of another format."""
    with path.open("rb") as file:
        head = file.read(_USER_BLOCK_NBYTES + 8)
        if head[:2] == b"PK":
            return _is_archive(path, any_format)
    if not head or head[2:10] == MAGIC:
        return True
    is_other = head.startswith(_HEADS) or head[_USER_BLOCK_NBYTES:] == _HEADS[1]
    return is_other and any_format


def _is_archive(path: Path, any_format: bool) -> bool:
    """Whether a zip is empty or contains arrays: office documents are zips, too."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
        return False
    suffixes = (".npy", ".b2nd") if any_format else (".b2nd",)
    return not names or any(
        name.endswith(suffixes) or name.rpartition("/")[2] in _MARKERS[any_format] for name in names
    )


def _problem_of_directory(target: Path, any_format: bool) -> str:
    """Why a directory is no dataset, or has files that are no frames, or no arrays; or empty."""

    def refuse(error: OSError) -> None:
        raise error

    parts = _MARKERS[any_format] | {_LEFT_FILE}
    # folders of zarr arrays, and the chunk folders in them
    of_zarr: set[Path] = set()
    for at, folders, names in os.walk(target, onerror=refuse):
        folder = Path(at)
        inside = folder.parent in of_zarr and _ZARR_CHUNK.fullmatch(folder.name)
        if any_format and (inside or _is_zarr_array(folder, names)):
            of_zarr.add(folder)
        folders[:] = [name for name in folders if _LEFT_FOLDER.fullmatch(name) is None]
        for name in names:
            is_chunk = folder in of_zarr and _ZARR_CHUNK.fullmatch(name)
            if not (name in parts or _PARTS.fullmatch(name) or is_chunk):
                other = printable(os.path.relpath(folder / name, target))
                return f"the directory has a file that does not belong to a dataset ({other})"
    present = {entry.name for entry in target.iterdir()}
    if not present or present & _MARKERS[any_format]:
        return ""
    needed = f"{MANIFEST}, {MAIN_MEMBER} or {'zarr.json' if any_format else EMBED}"
    return (
        f"the directory is not a dataset, even if it contains {_WHAT[any_format]}: it has no "
        f"{needed} at its top"
    )


def _is_zarr_array(folder: Path, names: list[str]) -> bool:
    if "zarr.json" not in names:
        return ".zarray" in names
    path = folder / "zarr.json"
    if path.stat().st_size > _MAX_JSON_NBYTES:
        return False
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("node_type") == "array"
