"""Random programs over frames, run beside the same programs over arrays in memory.

`sources` makes frames and the arrays that they hold, `tables` and `grammar` draw programs line by
line, `functions` has the chunk functions that programs call, `program` runs a program both ways and
compares, `reduce` finds the shortest part that still differs. ``python -m tests.graph.programs
--seconds 600`` looks for differences with a fresh seed, and prints each as a test.
"""
