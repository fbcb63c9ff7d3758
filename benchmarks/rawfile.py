"""Chunks in a file without metadata: the minimum work of any writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.arrays import ArrayData, Index


@dataclass(frozen=True)
class RawFile:
    """Compressed chunks of an array, and their byte ranges."""

    path: Path
    array: ArrayData
    extents: Sequence[tuple[int, int]]
    """Byte offset and length of each chunk, in C order."""

    @classmethod
    def write(
        cls,
        path: Path,
        array: ArrayData,
        chunks: Iterable[Callable[[], NDArray[Any]]],
        compress: Callable[[NDArray[Any]], bytes],
        threads: int,
    ) -> Self:
        end, lock = 0, Lock()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

        def write_one(chunk: Callable[[], NDArray[Any]]) -> tuple[int, int]:
            nonlocal end
            payload = compress(chunk())
            with lock:
                start, end = end, end + len(payload)
            os.pwrite(fd, payload, start)
            return start, len(payload)

        try:
            with ThreadPoolExecutor(threads) as pool:
                extents = list(pool.map(write_one, chunks))
        finally:
            os.close(fd)
        return cls(path, array, extents)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __getitem__(self, where: Index) -> NDArray[Any]:
        """One whole chunk."""
        import blosc2

        starts = [one.start // n for one, n in zip(where, self.array.chunks, strict=True)]
        counts = [-(-n // c) for n, c in zip(self.array.shape, self.array.chunks, strict=True)]
        start, nbytes = self.extents[int(np.ravel_multi_index(starts, counts))]
        items = np.empty([one.stop - one.start for one in where], self.array.dtype)
        with self.path.open("rb") as file:
            file.seek(start)
            blosc2.decompress2(file.read(nbytes), dst=items.reshape(-1).view(np.uint8), nthreads=1)
        return items
