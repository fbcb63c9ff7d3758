"""Dask graphs out of frames and back: the only layer that knows dask.

`read` makes arrays of frames, `write` makes frames of arrays and stands on `read`; `optimize`
rewrites graphs of both, which neither needs. `resources` says what computes a graph, `_dask_compat`
holds all private names of dask. All import `frame` and `storage`; of `format` only the grid.
"""
