"""Reading: a frame, or several, as a dask array.

`from_b2nd` opens frames; `sizes` chooses the blocks of the dask array and estimates the cost of
others; `blocks` has the reads of blocks, and their layers. Imports `frame`, and of `graph` only
`_dask_compat`, `resources` and `task_names`; on demand `from_b2nd` loads `array_expr`.
"""
