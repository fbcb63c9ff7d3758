"""Random programs over frames, run beside the same programs over arrays in memory.

`sources` makes frames and the arrays that they hold. `grammar` draws programs line by line: by
`groups` of templates (`tables`, `chunk_tables`, `block_tables`), while `values` keeps in mind how
exact results are; `functions` has the chunk functions that programs call. `program` runs a program
both ways (`side`, of one of `front_ends`), computes it in one of `ways`, and compares; `reduce`
finds the shortest part that still differs. ``python -m tests.graph.programs --seconds 600`` looks
for differences with a fresh seed, and prints each as a test.
"""
