"""The package's model of a computation: a tree of nodes above reads of frames.

`nodes` has the nodes: reads, elementwise calls, moves, and opaque nodes. A node decides whether it
accepts a slice, other blocks or other axes, as in expressions of dask-array. `elementwise` lists
functions whose results do not depend on the blocks; `program` compiles a tree of them to steps.
`chunk_steps` has the chunk steps of reductions, `grouped` those of flox; `ranges`, `derived` and
`pruning` evaluate statistics of chunks. Nothing here depends on graphs or tasks.
"""
