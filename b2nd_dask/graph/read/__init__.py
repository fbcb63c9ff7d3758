"""Reading: a frame as a dask array.

`from_b2nd` chooses the blocks of the dask array; `blocks` holds the symbolic argument that stands
for all of them, and the constants that it knows from the offset index. Imports `frame` and
`graph.resources`; nothing of writing and nothing of the optimizer, which imports these modules.
"""
