"""Where the frame of an opened `blosc2.NDArray` lies: in memory, in a file, or inside one.

python-blosc2 knows the file of an array, but not at which byte of it the frame begins, and a store
(``.b2z``) that is open for changes shows the files of a temporary folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, level_of_caller
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, parse_frame, read_header
from b2nd_dask.frame.read.scan import scan_chunks
from b2nd_dask.storage import Location, member_offset, zip_members

#: python-blosc2's code for chunks that repeat a value, which are stored chunks to the index.
_REPEATED_VALUE = 3
#: Chunks whose kind is looked at where not all are compared.
_SAMPLE = 64
#: Files of an archive that are opened to find an array: each takes about a millisecond.
_LOOKED_AT = 1000


def is_opened_array(given: Any) -> bool:
    """Whether an object is a `blosc2.NDArray`, without importing blosc2.

    Fields of arrays, proxies and remote arrays have a `schunk` too, which is not what they show.
    """
    return any(
        kind.__name__ == "NDArray" and kind.__module__.partition(".")[0] == "blosc2"
        for kind in type(given).__mro__
    )


def location_of_array(array: Any, offset: int = 0) -> Location:
    """Find the frame of an opened array; one in memory is copied.

    Parameters
    ----------
    offset : int
        Where its frame begins in its file; 0 to look for it.

    Returns
    -------
    Location
        Of the file that holds the frame, and the offset in it.

    Raises
    ------
    FileNotFoundError
        Its file was in the temporary folder of a store that is closed.
    ValueError
        Its file holds other frames, and none of them, or of the first 1000, is known to be this
        one.
    """
    if array.schunk.urlpath is None:
        return Location.of(array.to_cframe(), offset=offset)
    own = Path(os.path.abspath(array.schunk.urlpath))  # noqa: PTH100 - a name may begin with ~
    if offset:
        return Location.of(own, offset=offset)
    store, key = _origin(array)
    if store is not None and not _is_same_file(store, own):
        return _of_unpacked(array, own, store, key)
    if own.is_dir() or _fills_file(own):
        return Location.of(own)
    found = _member_of(array, own, key)
    if found is None and _holds(Location.of(own), array):
        # with bytes behind it that are no part of it
        found = Location.of(own)
    if found is None:
        raise ValueError(
            f"{own}: this array's frame lies inside the file, and python-blosc2 does not tell "
            "where: pass the path and offset= instead of the opened array"
        )
    return found


def _origin(array: Any) -> tuple[Path | None, str | None]:
    """Path of the ``.b2z`` store that an array was taken from, and its key there."""
    ref = getattr(array, "_blosc2_ref", None)
    if ref is None or ref.kind != "dictstore_key":
        return None, None
    store = Path(os.path.abspath(ref.urlpath))  # noqa: PTH100 - a name may begin with ~
    # the arrays of a folder (.b2d) are files of their own
    return (None, None) if store.is_dir() else (store, ref.key)


def _of_unpacked(array: Any, own: Path, store: Path, key: str | None) -> Location:
    """Find an array that an open store has unpacked into its temporary folder."""
    found = _member_of(array, store, key, compared=True)
    if found is not None:
        return found
    if not own.exists():
        raise FileNotFoundError(
            f"{own}: this array was in the temporary folder of a store that is closed, and {store} "
            'does not hold it as it was here: take it from the store anew, opened with mode="r"'
        )
    warnings.warn(
        f"{store} does not hold {key!r} as it is now, since the store is open for changes: it is "
        f"read from {own}, which is removed when the store is closed. Close the store first, and "
        'open it with mode="r", for an array that lasts',
        stacklevel=level_of_caller(),
    )
    return Location.of(own)


def _is_same_file(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _fills_file(path: Path) -> bool:
    """Whether a file is one frame from its first byte to its last."""
    try:
        with closing(Location.of(path).open()) as reader:
            size = reader.opened_identity().size
            return read_header(reader, size)[1].frame_len == size
    except B2ndError:
        return False


def _member_of(
    array: Any, archive: Path, key: str | None, *, compared: bool = False
) -> Location | None:
    """Find an array among the frames of a ZIP archive, by its key or by what it holds.

    With `compared` a frame has to hold the same chunks, all of them, also where it is the only one
    that looks like the array.
    """
    frames = list(islice(_members_of_key(archive, key), _LOOKED_AT + 1))
    # another one may look like the array among those that are left out
    compared = compared or len(frames) > _LOOKED_AT
    alike = _alike(array, frames[:_LOOKED_AT])
    first = next(alike, None)
    if first is None:
        return None
    if not compared:
        second = next(alike, None)
        if second is None:
            # what the archive says of its files may have changed since the array was opened
            return first if _holds(first, array, some=True) else None
        alike = chain([second], alike)
    locations = chain([first], alike)
    return next((location for location in locations if _holds(location, array)), None)


def _members_of_key(archive: Path, key: str | None) -> Iterator[Location]:
    """Where files of an archive begin; nothing where it is none, or a damaged one."""
    with suppress(FileNotFoundError, B2ndError), closing(Location.of(archive).open()) as reader:
        for member in zip_members(reader).values():
            own = os.path.splitext(member.name)[0]  # noqa: PTH122 - a name in an archive is no path
            if member.is_plain and (key is None or own == key.lstrip("/")):
                with suppress(B2ndError):  # of this member; the others may be whole
                    yield Location.of(archive, offset=member_offset(reader, member))


def _alike(array: Any, locations: list[Location]) -> Iterator[Location]:
    """Locations of frames that have the shapes of an array."""
    for location in locations:
        opened = _opened(location)
        if opened is not None:
            opened.reader.close()
            if _is_alike(opened.parsed, array):
                yield location


def _opened(location: Location) -> OpenedFrame | None:
    """Open a frame outside of the cache; None where there is none."""
    reader = location.open()
    try:
        return OpenedFrame(reader, parse_frame(reader), verify=False)
    except B2ndError:
        reader.close()
        return None


def _is_alike(parsed: ParsedFrame, array: Any) -> bool:
    """Whether a frame has the shapes of an array."""
    grid = parsed.grid
    theirs = (*map(tuple, (array.shape, array.chunks, array.blocks)), array.schunk.typesize)
    return (grid.shape, grid.chunks, grid.blocks, grid.itemsize) == theirs


def _holds(location: Location, array: Any, *, some: bool = False) -> bool:
    """Whether the frame at a location has the chunks of an array; with `some` a few of them."""
    opened = _opened(location)
    if opened is None:
        return False
    with closing(opened.reader):
        if not _is_alike(opened.parsed, array):
            return False
        return _is_same_sample(opened, array) and (some or _is_same(opened, array))


def _is_same_sample(opened: OpenedFrame, array: Any) -> bool:
    """Compare a few chunks, which most other frames do not have."""
    stored = stored_chunks(opened.parsed.index.offsets)
    # in the middle, too: edges are often alike
    picked = np.unique(stored[[0, len(stored) // 2, -1]]) if len(stored) else stored
    return _has_kinds(opened, array, _SAMPLE) and _has_chunks(opened, array, picked)


def _is_same(opened: OpenedFrame, array: Any) -> bool:
    return _has_kinds(opened, array, None) and _has_chunks(opened, array, None)


def _has_kinds(opened: OpenedFrame, array: Any, count: int | None) -> bool:
    """Whether the first chunks, or all, are special where those of an array are."""
    infos = islice(array.schunk.iterchunks_info(), count)
    codes = np.array([info.special.value for info in infos], np.uint8)
    codes[codes == _REPEATED_VALUE] = 0
    return np.array_equal(codes, opened.parsed.index.kinds[:count])


def _has_chunks(opened: OpenedFrame, array: Any, chunks: NDArray[np.int64] | None) -> bool:
    """Whether stored chunks, by default all, are those of an array, byte for byte."""

    def look(chunk: int, data: memoryview) -> int:
        try:
            theirs = array.schunk.get_chunk(chunk)
        except RuntimeError:
            # a special chunk, which is not stored
            return 0
        return int(data[: len(theirs)] == theirs)

    # one thread: a schunk is not for several
    return all(result == 1 for _, result in scan_chunks(opened, look, threads=1, chunks=chunks))
