"""The rewrite rules: `registry` has them in order, each has a module of its own.

A rule has a name, the reason it pays, a condition and a replacement (`rule`). Those for graphs see
a whole graph; those for tasks are tried on each fused task in one pass (`pushdown`). They import
`calls` and what frames offer, and of each other only what they add to. Import `registry` from
outside; workers import the functions that tasks call (`reduce_block`, `index_block`).
"""
