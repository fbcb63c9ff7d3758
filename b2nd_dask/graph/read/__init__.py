"""Reading: a frame, or several, as a dask array.

`from_b2nd` opens frames; `sizes` chooses the blocks of the dask array and says what others cost,
`blocks` holds the symbolic arguments that stand for all of them. Imports `frame` and
`graph._dask_compat`; nothing of writing and nothing of the optimizer, which imports these modules.
"""
