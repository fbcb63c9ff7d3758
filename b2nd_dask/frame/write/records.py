"""What write tasks report: for each chunk where it was staged, or what it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.storage import Run

_COLUMNS = ("chunk", "code", "part", "start", "nbytes")
_ROW = np.dtype([*((name, "i8") for name in _COLUMNS), ("digest", "u8")])


@dataclass(frozen=True, eq=False, slots=True)
class ChunkRecords:
    """Records of some chunks of a frame: a few bytes each, in a table."""

    parts: tuple[str, ...]
    """Names of staged parts."""
    rows: NDArray[Any]
    """Columns chunk; code (0 where stored, else the special code of the offset index); part, as a
    position in `parts`; start and nbytes in the part; digest (0 unless stored)."""

    @classmethod
    def of(
        cls, codes: dict[int, int], runs: dict[int, Run], digests: dict[int, int]
    ) -> ChunkRecords:
        """Make a table.

        Parameters
        ----------
        codes : dict of chunk to special code
        runs : dict of chunk to Run
            Where stored chunks were staged.
        digests : dict of chunk to int
            Of the same chunks.

        Returns
        -------
        ChunkRecords
        """
        parts = tuple(dict.fromkeys(run.part for run in runs.values()))
        number = {name: i for i, name in enumerate(parts)}
        stored = [
            (c, 0, number[r.part], r.start, r.stop - r.start, digests[c]) for c, r in runs.items()
        ]
        special = [(chunk, code, -1, 0, 0, 0) for chunk, code in codes.items()]
        return cls(parts, np.array(special + stored, _ROW))

    @classmethod
    def of_special(cls, chunks: NDArray[np.int64], code: int) -> ChunkRecords:
        """Make a table of chunks that stand for one special code.

        Parameters
        ----------
        chunks : ndarray of int64
        code : int

        Returns
        -------
        ChunkRecords
        """
        rows = np.zeros(len(chunks), _ROW)
        rows["chunk"], rows["code"], rows["part"] = chunks, code, -1
        return cls((), rows)


def merge_records(tables: Sequence[ChunkRecords]) -> ChunkRecords:
    """Put tables together.

    Parameters
    ----------
    tables : sequence of ChunkRecords

    Returns
    -------
    ChunkRecords
    """
    parts = tuple(dict.fromkeys(name for table in tables for name in table.parts))
    number = {name: i for i, name in enumerate(parts)}
    rows = []
    for table in tables:
        # one more for the -1 of special chunks
        renumbered = np.array([*(number[name] for name in table.parts), -1])
        moved = table.rows.copy()
        moved["part"] = renumbered[moved["part"]]
        rows.append(moved)
    return ChunkRecords(parts, np.concatenate([np.empty(0, _ROW), *rows]))
