"""Conversion of frames to dask graphs and back: the only layer that imports dask.

`read` makes arrays of frames; `write` makes frames of arrays and builds on `read`; `persist` keeps
arrays compressed. `expression` describes a computation, `tasks` runs it. There are two front ends:
`layers` for graphs of `dask.array`, which `optimize` lowers, and `array_expr` for `dask_array`;
`from_b2nd` chooses between them. `plan` estimates the cost of a graph, `resources` describes the
scheduler's workers, `task_names` names tasks, `_dask_compat` holds all private names of dask. All
import `frame` and `storage`; of `format` only the grid and statistics.
"""
