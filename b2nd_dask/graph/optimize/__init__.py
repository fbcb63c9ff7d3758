"""The optimizer of graphs that read frames; `from_b2nd` and `to_b2nd` work without it.

dask calls `optimizer`, which reads the user's settings. From the results down, `rewrite` lowers
each needed layer by `reductions` or `lower`, or a whole result by `at_once`, and verifies the
graph. `sharing` finds the dependents of a layer, and whether they only read its blocks; `lower`
also renames lowered layers. Arrays of `dask_array` use `at_once`, `lower` and `reductions`, too.
The modules that read and write import only `optimizer`: the others need private names of dask.
"""
