"""Statistics of chunks, as docs/statistics.md describes them: least and greatest element, sum, NaN.

`kernel` computes the row of one chunk from its elements. `entry` has the columns of all chunks of a
frame, writes them as an entry of vlmeta that is bound to the record of checksums, and judges it
when it is read. Import from here.
"""

from b2nd_dask.format.statistics.entry import (
    MAX_ROW_NBYTES,
    ChunkStatistics,
    StatisticsEntry,
    build_statistics,
    element_counts,
    has_room_for_statistics,
    is_statistics,
    statistics_row,
    supports_statistics,
)
from b2nd_dask.format.statistics.kernel import chunk_statistics

__all__ = [
    "MAX_ROW_NBYTES",
    "ChunkStatistics",
    "StatisticsEntry",
    "build_statistics",
    "chunk_statistics",
    "element_counts",
    "has_room_for_statistics",
    "is_statistics",
    "statistics_row",
    "supports_statistics",
]
