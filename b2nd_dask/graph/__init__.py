"""Dask graphs out of frames and back: the only layer that knows dask.

`read` makes arrays of frames, `write` makes frames of arrays and stands on `read`; `persist` keeps
arrays compressed. `optimize` rewrites graphs, which neither of these needs; on it stand `regrid`,
which rechunks close to the read, and `plan`, which says what a graph takes. `resources` says what
computes it, `task_names` what tasks are called, `_dask_compat` holds all private names of dask. All
import `frame` and `storage`; of `format` only the grid.
"""
