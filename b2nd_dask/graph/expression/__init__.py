"""What the package knows of a computation: a tree of nodes above reads of frames.

`nodes` has the nodes: reads, elementwise calls, moves, and what is opaque. A node answers whether
it can take a slice, other blocks or other axes, as expressions of dask-array do. `elementwise` says
which functions compute the same of any blocks, `program` makes steps of a tree of them.
`chunk_steps` knows the steps of reductions; `ranges`, `derived` and `pruning` say what
follows from statistics of chunks. Nothing here knows graphs or tasks.
"""
