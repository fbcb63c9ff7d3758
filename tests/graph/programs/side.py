"""One side of a program: its names over frames, or over arrays in memory."""

from __future__ import annotations

import functools
import itertools
import operator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import xarray as xr

from b2nd_dask import from_b2nd
from tests.graph.programs.front_ends import front_end
from tests.graph.programs.functions import functions
from tests.graph.programs.sources import Source


class Side:
    """The names of one side of a program: over frames, or over arrays in memory."""

    def __init__(
        self, frames: list[tuple[Path, Source]], *, in_memory: bool, library: str = "dask"
    ) -> None:
        self._frames = frames
        self._in_memory = in_memory
        self.front_end = front_end(library)
        self.names: dict[str, Any] = {
            "da": self.front_end.module,
            "np": np,
            "dask": dask,
            "xr": xr,
            "pd": pd,
            "functools": functools,
            "operator": operator,
            "optimize": self.front_end.optimize,
            "frame": self.frame,
            "fn": functions(in_memory=in_memory),
        }

    def frame(self, number: int, chunks: Any = None, uninit: Any = None) -> Any:
        """The blocks of a frame, as `from_b2nd` gives them."""
        path, source = self._frames[number]
        if not self._in_memory:
            return from_b2nd(path, chunks=chunks, uninit=uninit, **self.front_end.options)
        array = source.array()
        if uninit is not None and source.start == "uninit":
            written = np.zeros(array.shape, bool)
            for region, _ in source.writes:
                written[eval(f"np.s_[{region}]")] = True
            array = np.where(written, array, np.asarray(uninit, array.dtype)).astype(array.dtype)
        chunks = from_b2nd(path, chunks=chunks).chunks
        return self.front_end.module.from_array(array, chunks=chunks)

    def arrays(self) -> list[Any]:
        """All arrays that lines have made."""
        return [value for value in self.names.values() if self.front_end.has_made(value)]

    def execute(self, line: str) -> Exception | None:
        """Run a line; return the error that it raises."""
        try:
            exec(line, self.names)
        except Exception as error:  # noqa: BLE001 - both sides must raise the same
            return error
        return None


_numbers = itertools.count()
_paths: dict[tuple[Path, Source], Path] = {}


def written(sources: tuple[Source, ...], folder: Path) -> list[tuple[Path, Source]]:
    """Write frames to paths that no frame had before, each once for a folder."""
    for source in sources:
        if (folder, source) not in _paths:
            path = folder / f"{next(_numbers)}.b2nd"
            source.write(path)
            _paths[folder, source] = path
    return [(_paths[folder, source], source) for source in sources]
