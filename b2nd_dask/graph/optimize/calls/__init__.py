"""What a fused task computes: an expression of a read, elementwise work, a reduction or an index.

`expression` makes a tree of the task, `elementwise` knows the functions that may be carried out on
parts of a block, `program` lists them as steps, `reductions`, `widened` and `arg_reductions` know
dask's chunk steps and how their partial results merge, `window` reads what is indexed. Nothing here
looks at a graph, nor at more than one task; the rules import it.
"""
