"""The global land mask of the package `global-land-mask`, as a b2nd frame.

The package stores one deflated ``mask.npy`` of 21600 x 43200 booleans, true over the ocean, made
from the GLOBE elevation model: row `i` covers the latitudes from ``90 - i / 120`` down to
``90 - (i + 1) / 120`` degrees, column `j` the longitudes from ``-180 + j / 120`` eastwards.
Importing it would put all 933 MB into memory, so the file is found without the import and read
band by band.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph.write.to_b2nd import to_b2nd

_FILE, _MEMBER = "globe_combined_mask_compressed.npz", "mask.npy"


def find_mask() -> Path | None:
    """Find the file of the mask; None where the package is not installed."""
    spec = importlib.util.find_spec("global_land_mask")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(_FILE)
    return path if path.is_file() else None


def land_bands(npz: Path, height: int) -> Iterator[NDArray[np.bool_]]:
    """Read the mask from north to south, `height` rows at a time, as True over land."""
    with zipfile.ZipFile(npz) as archive, archive.open(_MEMBER) as stream:
        np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if len(shape) != 2 or fortran or dtype != np.bool_:
            raise ValueError(
                f"{npz}: expected a 2-d boolean array in C order, found shape {shape}, dtype "
                f"{dtype}; install global-land-mask 1.0"
            )
        rows, columns = shape
        for top in range(0, rows, height):
            raw = stream.read(min(height, rows - top) * columns)
            yield ~np.frombuffer(raw, np.bool_).reshape(-1, columns)


def write_frame(bands: Iterable[NDArray[np.bool_]], path: Path, chunk: int) -> None:
    """Write bands of `chunk` rows as a frame with square chunks, with one band in memory.

    Chunks of sea alone become codes of the index, chunks of land alone repeated-value chunks of 33
    bytes; only coasts are compressed. The frame appears under its name when it is whole.
    """
    growing = path.with_name(path.name + ".part")
    growing.unlink(missing_ok=True)
    for band in bands:
        to_b2nd(band, growing, mode="a", append_axis=0, chunks=chunk)
    growing.replace(path)
