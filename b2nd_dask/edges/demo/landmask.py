"""The global land mask of the `global-land-mask` package, as a b2nd frame.

The package stores one deflated ``mask.npy`` of 21600 x 43200 booleans, true over the ocean, made
from the GLOBE elevation model: row `i` covers the latitudes from ``90 - i / 120`` down to
``90 - (i + 1) / 120`` degrees, column `j` the longitudes from ``-180 + j / 120`` eastwards.
Importing it would put all 933 MB into memory, so the file is found without the import and read
band by band.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph.write.to_b2nd import to_b2nd

MASK_FILE = "globe_combined_mask_compressed.npz"
_MEMBER = "mask.npy"


def find_mask() -> Path | None:
    """Find the mask's file without importing the package that holds it.

    Returns
    -------
    pathlib.Path or None
        Path of the ``.npz`` file; None where ``global-land-mask`` is not installed.
    """
    spec = importlib.util.find_spec("global_land_mask")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(MASK_FILE)
    return path if path.is_file() else None


def mask_shape(npz: Path) -> tuple[int, int]:
    """Read the mask's shape from its header alone.

    Parameters
    ----------
    npz : pathlib.Path
        File with a 2-d boolean array ``mask`` in C order.

    Returns
    -------
    tuple of int
        Rows (north to south) and columns (west to east).

    Raises
    ------
    ValueError
        If the array is anything else.
    """
    with zipfile.ZipFile(npz) as archive, archive.open(_MEMBER) as stream:
        return _read_header(stream, npz)


def land_bands(npz: Path, height: int) -> Iterator[NDArray[np.bool_]]:
    """Yield the mask from north to south, inverted, `height` rows at a time.

    Parameters
    ----------
    npz : pathlib.Path
        File with a 2-d boolean array ``mask``, true over the ocean.
    height : int
        Rows in a band; the last band may be shorter.

    Yields
    ------
    numpy.ndarray of bool, shape (rows, columns)
        True over land.
    """
    with zipfile.ZipFile(npz) as archive, archive.open(_MEMBER) as stream:
        rows, columns = _read_header(stream, npz)
        for top in range(0, rows, height):
            band = min(height, rows - top)
            raw = stream.read(band * columns)
            if len(raw) < band * columns:
                raise ValueError(f"{npz}: {_MEMBER} ends early; install global-land-mask again")
            yield ~np.frombuffer(raw, dtype=np.bool_).reshape(band, columns)


def write_frame(
    bands: Iterator[NDArray[np.bool_]], path: Path, chunk: int, advance: Callable[[], object]
) -> None:
    """Write bands of rows as a frame with square chunks, holding one band in memory.

    Chunks of sea alone become codes of the index, chunks of land alone repeated-value chunks of 33
    bytes; only coasts are compressed. The frame appears under its name when it is whole.

    Parameters
    ----------
    bands : iterator of numpy.ndarray of bool
        Bands of `chunk` rows, from the first row on.
    path : pathlib.Path
        File to make; an existing one is replaced.
    chunk : int
        Side of a chunk, in cells.
    advance : callable
        Called after each band.
    """
    growing = path.with_name(path.name + ".part")
    growing.unlink(missing_ok=True)
    for band in bands:
        to_b2nd(band, growing, mode="a", append_axis=0, chunks=chunk)
        advance()
    growing.replace(path)


def _read_header(stream: IO[bytes], npz: Path) -> tuple[int, int]:
    version = np.lib.format.read_magic(stream)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if version != (1, 0) or len(shape) != 2 or fortran or dtype != np.bool_:
        raise ValueError(
            f"{npz}: expected a 2-d boolean array in C order, found shape {shape}, dtype {dtype}; "
            "install global-land-mask 1.0"
        )
    return shape[0], shape[1]
