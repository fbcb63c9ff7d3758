"""Chunks in a file and nothing else: what any writer has to do at least."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense


@dataclass(frozen=True)
class RawFile:
    """Compressed chunks, and where they lie."""

    path: Path
    places: Sequence[tuple[int, int]]
    """Start and length of each chunk."""

    @classmethod
    def write(
        cls,
        path: Path,
        chunks: Sequence[Callable[[], NDArray[Any]]],
        compress: Callable[[NDArray[Any]], bytes],
        threads: int,
        *,
        synced: bool,
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

        with ThreadPoolExecutor(threads) as pool:
            places = list(pool.map(write_one, chunks))
        if synced:
            os.fsync(fd)
        os.close(fd)
        return cls(path, places)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.places) * dense.CHUNK,)

    def __getitem__(self, where: slice) -> NDArray[np.float64]:
        """One whole chunk."""
        import blosc2

        start, nbytes = self.places[where.start // dense.CHUNK]
        with self.path.open("rb") as file:
            file.seek(start)
            items = np.empty(dense.CHUNK)
            blosc2.decompress2(file.read(nbytes), dst=items.view(np.uint8), nthreads=1)
        return items
