"""Consistent snapshots: manifest and frames of a dataset are opened in one version of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from b2nd_dask.errors import B2ndError, StaleFrameError
from b2nd_dask.format.labels.manifest import MANIFEST
from b2nd_dask.frame.members.files import inside, is_folder, is_named_store, opened
from b2nd_dask.storage import Identity, Location, split_store

#: To open a dataset that others change meanwhile.
_TRIES = 20
_Opened = TypeVar("_Opened")


def open_snapshot(
    source: Any, storage_options: Mapping[str, Any] | None, build: Callable[[], _Opened]
) -> _Opened:
    """Open a dataset; open it again if it was replaced meanwhile.

    Manifest and frames are opened one after the other, by their names. Once it is open, each frame
    raises StaleFrameError when it changes.

    Parameters
    ----------
    source : path, URL or object
        What the user names.
    build : callable
        Opens it.

    Raises
    ------
    StaleFrameError
        It is replaced again and again.
    """
    if not isinstance(source, str | os.PathLike):
        return build()
    location = Location.of(split_store(source)[0], storage_options=storage_options)
    for _ in range(_TRIES):
        before = _version(location)
        try:
            found = build()
        except (B2ndError, OSError):
            if _version(location) == before:
                raise
            continue
        if _version(location) == before:
            return found
    raise StaleFrameError("it is replaced again and again while it is opened", path=location.label)


def _version(location: Location) -> Identity | None:
    """Identity of what every writer of a dataset replaces: its one file, or its manifest."""
    if location.is_url:
        if not is_named_store(location):
            return None
        is_file = not is_folder(location)
    else:
        is_file = Path(location.url).is_file()
    with opened(location if is_file else inside(location, MANIFEST)) as reader:
        return None if reader is None else reader.opened_identity()
