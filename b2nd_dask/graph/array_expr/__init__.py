"""Front end for `dask_array`, whose arrays are expressions: sources absorb expressions above them.

`source` has the expressions that read frames; nodes, programs and tasks are those of `dask.array`.
`arrays` makes expressions from frames, and for writes converts expressions to arrays of
`dask.array`. `compat` has all private names of `dask_array`. Only `graph.read.from_b2nd` imports
this package, on demand.

`dask_array` offers a source each expression above it. `absorb.rule_table` has one rule for each
class of expressions; the rules for elementwise work and for reductions are in `rules`. A rule
returns the expression that replaces both, or the reason why the upper one stays. The logger
`b2nd_dask` reports each decision at level DEBUG.

A new rule is a function of a source, the expression above it, and the dependents of each
expression; it needs a row in the table, with its switch from `optimizer.RULE_NAMES`. Names of
`dask_array` that it needs go into `compat.NAMES`.
"""
