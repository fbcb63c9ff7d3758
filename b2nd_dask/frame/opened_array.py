"""What to read for an opened `blosc2.NDArray`: its bytes, its file, or a member of its store.

python-blosc2 knows the file of an array, but not at which byte of it the frame begins, and a store
(``.b2z``) that is open for changes shows the files of a temporary folder.
"""

from __future__ import annotations

import os
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.errors import B2ndError, level_of_caller
from b2nd_dask.frame.members.store import StoredArray, locate_member
from b2nd_dask.frame.open.embedded import open_reader
from b2nd_dask.frame.open.opening import OpenedFrame, parse_frame, read_header
from b2nd_dask.frame.read.scan import scan_chunks
from b2nd_dask.storage import Location

#: python-blosc2's code for chunks that repeat a value, which are stored chunks to the index.
_REPEATED_VALUE = 3


def is_opened_array(given: Any) -> bool:
    """Whether an object is a `blosc2.NDArray`, without importing blosc2.

    Fields of arrays, proxies and remote arrays have a `schunk` too, which is not what they show.
    """
    return any(
        kind.__name__ == "NDArray" and kind.__module__.partition(".")[0] == "blosc2"
        for kind in type(given).__mro__
    )


def source_of_array(array: Any, offset: int = 0) -> bytes | Path | StoredArray:
    """Find what to open anew for an opened array; one in memory is copied.

    Parameters
    ----------
    offset : int
        Where its frame begins in its file; 0 where the user does not say.

    Raises
    ------
    FileNotFoundError
        Its file was in the temporary folder of a store that is closed.
    ValueError
        Its frame lies inside a file, and is no member of a store that python-blosc2 knows.
    """
    if array.schunk.urlpath is None:
        return bytes(array.to_cframe())
    own = Path(os.path.abspath(array.schunk.urlpath))  # noqa: PTH100 - a name may begin with ~
    if offset:
        return own
    # what python-blosc2 knows of arrays that are taken from a store
    ref = getattr(array, "_blosc2_ref", None)
    if ref is not None and ref.kind == "dictstore_key" and not os.path.isdir(ref.urlpath):  # noqa: PTH112
        store = Path(os.path.abspath(ref.urlpath))  # noqa: PTH100
        return _source_in_store(array, own, StoredArray(Location.of(store), ref.key))
    if own.is_dir() or _fills_file(own) or _holds(Location.of(own), array):
        return own
    raise ValueError(
        f"{own}: this array's frame lies inside the file, and python-blosc2 does not tell "
        "where: pass the path and offset= instead of the opened array"
    )


def _source_in_store(array: Any, own: Path, stored: StoredArray) -> Path | StoredArray:
    """Choose between the archive and the file that an open store has unpacked from it."""
    store = Path(stored.store.url)
    unpacked = own != store and not (own.exists() and store.exists() and own.samefile(store))
    with suppress(FileNotFoundError, B2ndError):
        if _holds(locate_member(stored.store, stored.key), array, compared=unpacked):
            return stored
    if not (unpacked and own.exists()):
        raise FileNotFoundError(
            f"{own}: {store} does not hold {stored.key!r} as it was when this array was taken from "
            "it; the temporary folder of a store that is open for changes goes with it: take the "
            'array from the store anew, opened with mode="r"'
        )
    warnings.warn(
        f"{store} does not hold {stored.key!r} as it is now, since the store is open for changes: "
        f"it is read from {own}, which is removed when the store is closed. Close the store first, "
        'and open it with mode="r", for an array that lasts',
        stacklevel=level_of_caller(),
    )
    return own


def _fills_file(path: Path) -> bool:
    """Whether a file is one frame from its first byte to its last."""
    try:
        with closing(Location.of(path).open()) as reader:
            size = reader.opened_identity().size
            return read_header(reader, size)[1].frame_len == size
    except B2ndError:
        return False


def _holds(location: Location, array: Any, *, compared: bool = True) -> bool:
    """Whether a frame has the shapes of an array and, compared byte for byte, all its chunks."""
    try:
        with closing(open_reader(location)) as reader:
            opened = OpenedFrame(reader, parse_frame(reader), verify=False)
            grid = opened.parsed.grid
            theirs = (*map(tuple, (array.shape, array.chunks, array.blocks)), array.schunk.typesize)
            if (grid.shape, grid.chunks, grid.blocks, grid.itemsize) != theirs:
                return False
            return not compared or _has_chunks(opened, array)
    except B2ndError:
        return False


def _has_chunks(opened: OpenedFrame, array: Any) -> bool:
    codes = np.array([each.special.value for each in array.schunk.iterchunks_info()], np.uint8)
    codes[codes == _REPEATED_VALUE] = 0
    if not np.array_equal(codes, opened.parsed.index.kinds):
        return False

    def look(chunk: int, data: memoryview) -> int:
        theirs = array.schunk.get_chunk(chunk)
        return int(data[: len(theirs)] == theirs)

    # one thread: a schunk is not for several
    return all(result == 1 for _, result in scan_chunks(opened, look, threads=1))
