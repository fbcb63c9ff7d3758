"""Publish a target at once: it is written in a hidden directory beside it, then renamed.

What it replaces must hold only frames, or only arrays of any format.

A lock on the directory of a dataset makes its changes take turns.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.format.header import MAGIC
from b2nd_dask.format.labels.manifest import MANIFEST
from b2nd_dask.frame.members.files import EMBED
from b2nd_dask.storage import (
    MAIN_MEMBER,
    NO_LOCKS,
    about,
    area_of,
    frame_locked,
    printable,
    public_url,
    publish_path,
    remove_area,
    try_lock,
)
from b2nd_dask.system import require_writable, sync

logger = logging.getLogger("b2nd_dask")
#: Errors of a full disk, an exceeded quota or a file that is too large.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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


def local_target(urlpath: Any) -> Path:
    """The absolute path of a target, with links as they are.

    Raises TypeError if it is in bytes, ValueError if it is a URL.
    """
    text = os.fspath(urlpath)
    if not isinstance(text, str):
        raise TypeError(f"{text!r}: give the path of the target as text")
    if "://" in text:
        raise ValueError(
            f"{public_url(text)!r}: the target must be a local path, where a rename publishes it; "
            "upload the result, or write the arrays one by one by to_b2nd, which takes URLs"
        )
    # pathlib would drop links, and raise an error for the name of a file such as ~x
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111


@contextmanager
def changing(path: Path, *, replaced: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a dataset while the block runs: no other writer changes or replaces it.

    A dataset that the block replaces need not be a directory. Raises StaleFrameError if another
    process holds the lock, and `wait` is false.
    """
    with ExitStack() as held:
        if not replaced or path.is_dir():
            lock = frame_locked(path, str(path), is_directory=True) if wait else _locked_now(path)
            try:
                held.enter_context(lock)
            except OSError as error:
                # on a file system without locks a dataset can only be replaced
                if not replaced or error.errno not in NO_LOCKS:
                    raise
        yield


@contextmanager
def _locked_now(path: Path) -> Iterator[None]:
    """Hold the lock of a dataset; raise StaleFrameError if another process holds it."""
    with about(str(path)):
        fd = try_lock(path, str(path), is_directory=True)
    if fd is None:
        raise StaleFrameError(
            "another process changes this dataset; try again when it is done", path=str(path)
        )
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def staged(
    target: Path, *, replace: bool, advice: str, fsync: bool = True, any_format: bool = False
) -> Iterator[Path]:
    """Write a file or directory beside a target, and publish it by a rename at the end.

    Yields the path to write to, in a hidden directory that may also hold temporary files. If the
    target is a symlink, its destination is written, even if it does not exist yet.

    If the block fails, nothing is left. If the process is killed, the hidden directory is left;
    `list_staging` shows it and `remove_staging` removes it. With `fsync` all files are synced
    before the rename. `advice` is the user's spelling of `replace`, for messages. Raises
    FileExistsError if the target exists and `replace` is false, or it holds something other than
    frames, FileNotFoundError if the directory of the target does not exist, OSError if the system
    is Windows, StaleFrameError if another process changes the dataset to replace.
    """
    require_writable(str(target))
    if os.path.lexists(target) and not replace:
        raise FileExistsError(errno.EEXIST, f"it exists; {advice} replaces it", str(target))
    # the user's name, not that of a link's destination, gives the suffix
    name, target = target.name, Path(os.path.realpath(target))
    # checked before the write, which may take hours
    with changing(target, replaced=True):
        _require_replaceable(target, any_format=any_format)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "the directory of the target does not exist", str(target.parent)
        )
    area = area_of(target, secrets.token_hex(8))
    with about(str(target)):
        area.mkdir()
    try:
        ready = area / name
        yield ready
        with about(str(target)):
            if fsync:
                _sync(ready)
            with changing(target, replaced=True, wait=True):
                # checked again: files may have appeared during the write
                _require_replaceable(target, any_format=any_format)
                publish_path(ready, target, replace=replace, fsync=fsync)
    except OSError as error:
        if not _is_of_target(error, area):
            raise
        with about(str(target)):
            raise
    finally:
        _clean_up(target, area)


def _clean_up(target: Path, area: Path) -> None:
    """Remove the staging area; the old dataset gets its name back if the name is free."""
    for path in (area, area.with_suffix(".old")):
        try:
            remove_area(path, target)
        except OSError as error:
            logger.warning("%s: %s; `remove_staging` removes what is left", target, error)


def _is_of_target(error: OSError, area: Path) -> bool:
    """Whether an error comes from writing the target, and not from reading the source."""
    if error.filename is None:
        return error.errno in _FULL
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return False
    return Path(os.fsdecode(error.filename)).is_relative_to(area)


def _sync(path: Path) -> None:
    """Sync a file, or a directory with all its contents."""
    if not path.is_dir():
        sync(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))


def _require_replaceable(target: Path, *, any_format: bool) -> None:
    """Check that a target does not exist, is empty, or holds only frames, or arrays of any format.

    Raises FileExistsError if the target is another kind of file, or a directory that is no dataset
    or has other files.
    """
    if not os.path.lexists(target):
        return
    mode = target.stat().st_mode
    if stat.S_ISDIR(mode):
        _require_dataset(target, any_format)
    elif not stat.S_ISREG(mode):
        raise _refused(target, "the path is neither a file nor a directory")
    elif not _may_replace(target, any_format):
        raise _refused(target, f"the file holds no {_WHAT[any_format]}")


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


def _require_dataset(target: Path, any_format: bool) -> None:
    """Check that a directory is a dataset and contains only frames, or only arrays."""

    def refuse(error: OSError) -> None:
        raise error

    # folders of zarr arrays, and the chunk folders in them
    of_zarr: set[Path] = set()
    for at, folders, names in os.walk(target, onerror=refuse):
        folder = Path(at)
        inside = folder.parent in of_zarr and _ZARR_CHUNK.fullmatch(folder.name)
        if any_format and (inside or _is_zarr_array(folder, names)):
            of_zarr.add(folder)
        folders[:] = [name for name in folders if _LEFT_FOLDER.fullmatch(name) is None]
        for name in names:
            if not _is_part(name, any_format, in_zarr=folder in of_zarr):
                raise _refused(
                    target,
                    "the directory has a file that does not belong to a dataset "
                    f"({printable(os.path.relpath(folder / name, target))})",
                )
    present = {entry.name for entry in target.iterdir()}
    if present and not present & _MARKERS[any_format]:
        needed = f"{MANIFEST}, {MAIN_MEMBER}"
        needed += " or zarr.json" if any_format else f" or {EMBED}"
        raise _refused(
            target,
            f"the directory is not a dataset, even if it contains {_WHAT[any_format]}: it has no "
            f"{needed} at its top",
        )


def _is_part(name: str, any_format: bool, *, in_zarr: bool) -> bool:
    if name in _MARKERS[any_format] or name == _LEFT_FILE or _PARTS.fullmatch(name):
        return True
    return in_zarr and _ZARR_CHUNK.fullmatch(name) is not None


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


def _refused(target: Path, why: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST,
        f"{why}, so it is not replaced; choose another name, or move it away yourself",
        str(target),
    )
