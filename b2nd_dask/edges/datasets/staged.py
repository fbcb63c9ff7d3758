"""The files of a new dataset, and the publication of any target at once.

A target is written in a hidden directory beside it, then renamed. A lock on the directory of a
dataset makes its changes take turns.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from b2nd_dask.edges.datasets.replaceable import require_replaceable
from b2nd_dask.edges.datasets.tree import Tree, entries_of, sizes_of, updated_manifest
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.manifest import MANIFEST, Manifest, build_embed
from b2nd_dask.frame.members.store import EMBED
from b2nd_dask.graph.write.to_b2nd import Write
from b2nd_dask.storage import (
    about,
    area_of,
    frame_locked,
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
        with about(str(ready)):
            with zipfile.ZipFile(ready, "w", zipfile.ZIP_STORED) as archive:
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
            lock = frame_locked(outer, is_directory=True, shared=True, wait=False)
            held.enter_context(lock)
        if not replaced or path.is_dir():
            lock = frame_locked(path, is_directory=True, wait=wait)
            try:
                held.enter_context(lock)
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
    does not exist, StaleFrameError if another process changes the dataset to replace.
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
    area = area_of(target, secrets.token_hex(8))
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
    except B2ndError as error:
        # a frame that was just written may be read, to check it
        error.path = error.path and error.path.replace(ready.as_posix(), target.as_posix())
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
    for path in (area, area.with_suffix(".old")):
        try:
            remove_area(path, target)
        except OSError as error:
            logger.warning("%s: %s; `remove_staging` removes what is left", target, error)


def _is_of_target(error: OSError, area: Path) -> bool:
    """Whether an error comes from writing the target, and not from reading the source."""
    name = error.filename
    if name is None:
        return error.errno in _FULL
    is_path = isinstance(name, str | bytes | os.PathLike)
    return is_path and Path(os.fsdecode(name)).is_relative_to(area)
