"""The same array in the format of each library: equal chunks, codec, level and filter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compression import Compression
from benchmarks.model import Dataset

Index = tuple[slice, ...]
B2ND, ZARR, HDF5, ICECHUNK = "b2nd", "zarr", "hdf5", "icechunk"
#: Name of the dataset in HDF5 files.
HDF5_NAME = "array"


@dataclass(frozen=True)
class ArrayData:
    stem: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: np.dtype[Any]
    how: Compression
    recipe: Mapping[str, Any]
    """All parameters of the content, as JSON."""
    pieces: Callable[[], Iterator[tuple[Index, NDArray[Any]]]]
    """Whole chunks and their positions; the rest is zeros that no format stores."""

    @cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        return self.b2nd, self.zarr, self.hdf5

    @property
    def b2nd(self) -> Dataset:
        return Dataset(B2ND, f"{self.stem}.b2nd", self.recipe, self._write_b2nd)

    @property
    def zarr(self) -> Dataset:
        return Dataset(ZARR, f"{self.stem}.zarr", self.recipe, self._write_zarr)

    @property
    def icechunk(self) -> Dataset:
        name = f"{self.stem}.icechunk"
        return Dataset(ICECHUNK, name, self.recipe, self._write_icechunk, ("icechunk",))

    @property
    def hdf5(self) -> Dataset:
        needs = ("h5py", "hdf5plugin")
        return Dataset(HDF5, f"{self.stem}.h5", self.recipe, self._write_hdf5, needs)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def block_nbytes(self) -> int:
        return math.prod(self.blocks) * self.dtype.itemsize

    def zarr_codec(self) -> Any:
        return self.how.zarr_codec(self.dtype.itemsize, self.block_nbytes)

    def in_memory(self) -> NDArray[Any]:
        array = np.zeros(self.shape, self.dtype)
        for where, items in self.pieces():
            array[where] = items
        return array

    def title(self) -> str:
        def text(lengths: tuple[int, ...]) -> str:
            return " x ".join(f"{n:,}" for n in lengths)

        return (
            f"{text(self.shape)} {self.dtype} ({self.nbytes / 1e9:.3g} GB), {self.how.codec} level "
            f"{self.how.clevel}, shuffle, chunks of {text(self.chunks)}, "
            f"blocks of {text(self.blocks)}"
        )

    def _write_b2nd(self, path: Path) -> None:
        import blosc2

        array = blosc2.zeros(
            self.shape,
            self.dtype,
            chunks=self.chunks,
            blocks=self.blocks,
            cparams=blosc2.CParams(**self.how.blosc2_params()),
            urlpath=str(path),
        )
        for where, items in self.pieces():
            array[where] = items

    def _write_zarr(self, path: Path) -> None:
        self._write_to_store(str(path))

    def _write_icechunk(self, path: Path) -> None:
        import icechunk

        made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
        session = made.writable_session("main")
        self._write_to_store(session.store)
        session.commit("the array")

    def _write_to_store(self, store: Any) -> None:
        import zarr

        array = zarr.create_array(
            store,
            shape=self.shape,
            chunks=self.chunks,
            dtype=self.dtype,
            compressors=self.zarr_codec(),
        )
        for where, items in self.pieces():
            array[where] = items

    def _write_hdf5(self, path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            array = file.create_dataset(
                HDF5_NAME,
                self.shape,
                self.dtype,
                chunks=self.chunks,
                compression=self.how.hdf5_filter(),
            )
            for where, items in self.pieces():
                array[where] = items


def chunk_slices(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[Index]:
    """The position of each chunk, in C order."""
    counts = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    return [
        tuple(
            slice(i * c, min(n, (i + 1) * c)) for i, c, n in zip(place, chunks, shape, strict=True)
        )
        for place in np.ndindex(*counts)
    ]
