"""The optimizer of graphs that read frames; neither `from_b2nd` nor `to_b2nd` needs it.

`optimizer` is what dask calls, `switch` the user's choice of rules, `rewrite` applies these and
verifies the graph, `resources` are those of the cluster that will run it. `rules` say what is
replaced by what, `calls` what the tasks compute. From outside only `optimizer` may be imported:
all else needs private names of dask, which `graph._dask_compat` holds.
"""
