"""Reading: a frame, or several, as a dask array.

`from_b2nd` opens frames; `sizes` chooses the blocks of the dask array and estimates the cost of
others; `blocks` holds the symbolic arguments of block tasks. Imports `frame` and
`graph._dask_compat`, but no writing and no optimizer; the optimizer imports these modules.
"""
