"""The registry of cases."""

from __future__ import annotations

from benchmarks.cases import (
    ablation,
    array3d_read,
    beyond_memory,
    cluster,
    cluster_million,
    dense_sum,
    integrity,
    many_frames,
    open_million,
    persisted,
    points,
    rechunk,
    rechunk_big,
    remote,
    scale_chunks,
    scale_selection,
    scale_size,
    scale_threads,
    several_writers,
    small_reads,
    special,
    statistics,
    transform,
    transform_big,
    write_constant,
    write_dense,
)
from benchmarks.model import Case

_MODULES = (
    dense_sum,
    array3d_read,
    small_reads,
    points,
    special,
    statistics,
    open_million,
    beyond_memory,
    remote,
    scale_chunks,
    scale_selection,
    scale_threads,
    scale_size,
    write_dense,
    transform,
    transform_big,
    cluster,
    cluster_million,
    rechunk,
    rechunk_big,
    many_frames,
    persisted,
    several_writers,
    write_constant,
    integrity,
    ablation,
)

CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}
