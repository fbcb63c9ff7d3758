"""The optimizer of graphs that read frames; neither `from_b2nd` nor `to_b2nd` needs it.

`optimizer` is what dask calls, with the rules that the user chose; `rewrite` applies the rewrite
rules in order and verifies the graph. `rules` say what is replaced by what, `calls` what the tasks
compute. From outside only `optimizer` may be imported: all else needs private names of dask, which
come from `graph._dask_compat`.
"""
