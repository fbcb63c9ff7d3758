"""The optimizer of graphs that read frames; `from_b2nd` and `to_b2nd` work without it.

dask calls `optimizer`, which knows the user's rules. `rewrite` goes from the results down, lowers
each needed layer and verifies the result: by `reductions` or `lower`, or a whole result by
`at_once`. `sharing` finds the dependents of a layer, and whether they only read its blocks; `lower`
also gives lowered layers new keys. Arrays of `dask_array` use `at_once`, `lower` and `reductions`,
too. The modules that read and write import only `optimizer`: the others need private names of dask,
from `graph._dask_compat`.
"""
