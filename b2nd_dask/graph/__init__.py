"""Dask graphs out of frames and back: beside the demo, the only place that imports dask.

`read` makes arrays of frames, `write` makes frames of arrays and stands on `read`; `optimize`
rewrites graphs of both, which neither needs. `resources` says what computes a graph. All import
`frame` and `storage`; of `format` only the grid.
"""
