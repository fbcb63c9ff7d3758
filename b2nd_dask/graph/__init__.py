"""Dask graphs out of frames and back: the only layer that knows dask.

`read` makes arrays of frames, `write` makes frames of arrays and stands on `read`; `persist` keeps
arrays compressed. `expression` is what is known of a computation, `tasks` what runs it. Its front
ends are `layers`, for graphs of `dask.array`, which `optimize` lowers, and `array_expr`, for
expressions of `dask_array`; `from_b2nd` chooses between them. `plan` says what a graph takes,
`resources` what computes it, `task_names` what tasks are called, `_dask_compat` holds all private
names of dask. All import `frame` and `storage`; of `format` only the grid and statistics.
"""
