"""The files of a new dataset, and the publication of any target at once.

A target is written in a hidden directory beside it, then renamed. It may replace only frames, or
only arrays of any format. A lock on the directory of a dataset makes its changes take turns.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from b2nd_dask.edges.datasets.tree import Tree, entries_of, sizes_of, updated_manifest
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.header import MAGIC
from b2nd_dask.format.manifest import MANIFEST, Manifest, build_embed
from b2nd_dask.frame.members.store import EMBED
from b2nd_dask.graph.write.to_b2nd import Write
from b2nd_dask.storage import (
    MAIN_MEMBER,
    Location,
    about,
    area_of,
    frame_locked,
    log_other_staging,
    printable,
    public_url,
    publish_path,
    remove_area,
    remove_path,
)
from b2nd_dask.system import require_writable, sync

logger = logging.getLogger("b2nd_dask")
#: Errors of a full disk, an exceeded quota or a file that is too large.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Suffixes with a meaning in directories and stores of frames.
_SUFFIXES = (".b2nd", ".b2f", ".b2b", ".b2e", ".b2d", ".b2z", ".b2frame")
#: Most bytes of a name; leaves room for the names of staging areas.
_LONGEST_NAME = 100
#: One of these lies at the top of every dataset, store and sparse frame.
_OF_FRAMES = frozenset((MANIFEST, EMBED, MAIN_MEMBER))
#: By whether arrays of other formats count, too.
_MARKERS = {False: _OF_FRAMES, True: _OF_FRAMES | {"zarr.json", ".zgroup", ".zarray"}}
_WHAT = {False: "frames", True: "arrays"}
#: Names of the other files in datasets, stores and sparse frames.
_PARTS = re.compile(r".+\.(b2nd|b2e|b2f|b2d|b2z|chunk|lock)|\.z(attrs|metadata)", re.DOTALL)
#: Names of the chunk folders and chunk files in the folder of a zarr array.
_ZARR_CHUNK = re.compile(r"c|(c\.)?\d+(\.\d+)*")
#: Folders that a killed write leaves in a dataset, and the next manifest.
_LEFT_FOLDER = re.compile(r"\..+\.[0-9a-f]{16}\.(staging|removed|old)", re.DOTALL)
NEW_MANIFEST = f".{MANIFEST}.new"
#: First bytes of npy, HDF5 and NetCDF-3 files; a frame has its magic at offset 2.
_HEADS = (b"\x93NUMPY", b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05")
#: HDF5 may start after a user block: 512 bytes in files of MATLAB.
_USER_BLOCK_NBYTES = 512
#: Most bytes of the `zarr.json` of an array.
_MAX_JSON_NBYTES = 16 << 20


def check_layout(tree: Tree, advice: str = "change it by .rename") -> None:
    """Check that the names in a tree can be file names, and that lengths of dims agree.

    `advice` is the way to change a name, for messages. Raises ValueError if a name cannot be a file
    name, two names differ only in case, or a dim has several lengths.
    """
    for _, level in tree.levels():
        folded: dict[str, str] = {}
        for name in (*level.members, *level.groups):
            if problem := _problem_of_name(name):
                raise ValueError(
                    f"{level.label}: {printable(name)!r} cannot be the name of a file: {problem}; "
                    f"{advice}"
                )
            if other := folded.get(name.casefold()):
                how = f"{other!r} and {name!r} differ only in case, and are one file on some disks"
                if other == name:
                    how = f"{name!r} is an array and a group, which a store cannot hold"
                raise ValueError(f"{level.label}: {how}; {advice}")
            folded[name.casefold()] = name
        sizes_of(level)


def _problem_of_name(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name[0] in "._":
        return f"{name[0]!r} at the start marks files that are not variables"
    if name == MANIFEST or Path(name).suffix in _SUFFIXES:
        return "files with this name or suffix are something else in a store"
    if wrong := sorted({c for c in name if c in "/\\" or not c.isprintable()}):
        return f"it has {', '.join(map(repr, wrong))}"
    return (
        f"it is longer than {_LONGEST_NAME} bytes" if len(name.encode()) > _LONGEST_NAME else None
    )


def write_dataset(
    tree: Tree, ready: Path, write: Callable[[list[Write]], object], *, packed: bool
) -> None:
    """Write a directory of frames or, if `packed`, an uncompressed archive."""
    folder = ready.with_name("frames.part") if packed else ready
    writes: list[Write] = []
    for inner, level in tree.levels():
        place = folder / inner
        place.mkdir()
        manifest = Manifest(groups=tuple(level.groups))
        (place / MANIFEST).write_bytes(updated_manifest(manifest, level))
        # without fsync: `staged` syncs all files
        writes += frames_of(level, place, fsync=False)
    # the member list of python-blosc2
    (folder / EMBED).write_bytes(build_embed())
    write(writes)
    if packed:
        with about(str(ready)), zipfile.ZipFile(ready, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(folder).as_posix())
        remove_path(folder)


def frames_of(tree: Tree, place: Path, **options: Any) -> list[Write]:
    """The writes of a group's frames into a directory."""
    writes: list[Write] = []
    for name, member in tree.members.items():
        how = {"vlmeta": entries_of(member, name), "meta": {}, **options, **member.storage}
        writes.append((member.array, place / f"{member.stem(name)}.b2nd", how))
    return writes


def local_target(urlpath: Any) -> Path:
    """The absolute path of a target, with links as they are; raise an error for bytes or a URL."""
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

    A dataset that the block replaces need not be a directory. While a group changes, the datasets
    around it cannot be replaced. Errors as those of `frame_locked`.
    """
    around = () if replaced else path.parents
    with ExitStack() as held:
        for outer in takewhile(lambda folder: (folder / MANIFEST).is_file(), around):
            held.enter_context(frame_locked(outer, is_directory=True, shared=True, wait=False))
        if not replaced or path.is_dir():
            try:
                held.enter_context(frame_locked(path, is_directory=True, wait=wait))
            except OSError as error:
                # on a file system without locks a dataset can only be replaced
                if not replaced or error.errno != errno.ENOLCK:
                    raise
        yield


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
    FileExistsError if the target exists and may not be replaced, FileNotFoundError if its directory
    does not exist, BlockingIOError if another process changes the dataset to replace.
    """
    require_writable(str(target))
    if os.path.lexists(target) and not replace:
        raise FileExistsError(errno.EEXIST, f"it exists; {advice} replaces it", str(target))
    # the user's name, not that of a link's destination, gives the suffix
    name, target = target.name, Path(os.path.realpath(target))
    # checked before the write, which may take hours
    with changing(target, replaced=True):
        require_replaceable(target, any_format=any_format)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "the directory of the target does not exist", str(target.parent)
        )
    key = secrets.token_hex(8)
    area = area_of(target, key)
    log_other_staging(Location(str(target)), key)
    with about(str(target)):
        area.mkdir()
    ready = area / name
    try:
        yield ready
        with about(str(target)):
            for each in (ready, *ready.rglob("*")) if fsync else ():
                sync(each)
            with changing(target, replaced=True, wait=True):
                # checked again: files may have appeared during the write
                require_replaceable(target, any_format=any_format)
                publish_path(ready, target, replace=replace, fsync=fsync)
    except (B2ndError, ValueError) as error:
        # the new file may be read, to check it
        hidden, shown = ready.as_posix(), target.as_posix()
        if isinstance(error, B2ndError):
            error.path = error.path and error.path.replace(hidden, shown)
        elif len(error.args) == 1:
            error.args = (str(error).replace(hidden, shown),)
        raise
    except OSError as error:
        if not _is_of_target(error, area):
            raise
        with about(str(target)):
            raise
    finally:
        _clean_up(target, area)


def _clean_up(target: Path, area: Path) -> None:
    """Remove the staging area; the old dataset gets its name back if the name is free."""
    try:
        remove_area(area, target)
    except OSError as error:
        logger.warning("%s: %s; `remove_staging` removes what is left", target, error)


def _is_of_target(error: OSError, area: Path) -> bool:
    """Whether an error comes from writing the target, and not from reading the source."""
    name = error.filename
    if name is None:
        return error.errno in _FULL
    is_path = isinstance(name, str | bytes | os.PathLike)
    return is_path and Path(os.fsdecode(name)).is_relative_to(area)


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

    parts = _MARKERS[any_format] | {NEW_MANIFEST}
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
