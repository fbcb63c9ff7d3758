"""Front end for `dask_array`, whose arrays are expressions: a source absorbs what reads can do.

`source` has the expressions that read frames, with the nodes, programs and tasks that `dask.array`
uses, too. `arrays` makes arrays of frames, and arrays of `dask.array` of what is written. `compat`
has all private names of `dask_array`. Nothing imports this package but
`graph.read.from_b2nd`, on demand.

`dask_array` asks a source what becomes of each expression above it. `absorb.rule_table` has the
rules, one for each class of expressions; those of elementwise work and of reductions are in
`rules`. A rule returns the expression that takes the place of both, or the
reason why it stays. At DEBUG the logger `b2nd_dask` has a line for each answer: which expression
absorbed which, or why not.

A new rule is a function of a source, the expression above it, and what depends on each expression;
and a row of the table, with the name in `optimizer.RULE_NAMES` that switches it. What it needs of
`dask_array` goes into `compat.NAMES`.
"""
