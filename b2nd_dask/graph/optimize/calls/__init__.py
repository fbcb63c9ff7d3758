"""What a fused task computes: an expression of a read, elementwise work, a reduction or an index.

`expression` parses a task into a tree of calls, `elementwise` turns functions that may run on parts
of a block into a list of steps, `reductions` and `arg_reductions` know dask's chunk steps and how
their partial results combine. No module here reads a graph, or more than one task; the rules
import them.
"""
