"""Reading: a frame, or several, as a dask array.

`from_b2nd` chooses the blocks of the dask array; `blocks` holds the symbolic argument that stands
for all of them, and the constants that it knows from the offset index; `many` and `many_sizes` do
so for frames that are joined. Imports `frame` and
`graph._dask_compat`; nothing of writing and nothing of the optimizer, which imports these modules.
"""
