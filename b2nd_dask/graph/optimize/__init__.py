"""The optimizer of graphs that read frames; neither `from_b2nd` nor `to_b2nd` needs it.

`optimizer` is what dask calls, with the rules that the user chose. `rewrite` goes from the results
down, lowers each layer that is needed, and verifies the result: by `reductions`, `lower` or
`indexing`, or all at once by `at_once`. `sharing` says what else uses a layer, and whether it only
reads the blocks; `lower` also gives lowered layers keys of their own. Arrays of
`dask_array` share `at_once`, `lower` and `reductions`. What reads and writes imports `optimizer`
alone: all else needs private names of dask, which come from `graph._dask_compat`.
"""
