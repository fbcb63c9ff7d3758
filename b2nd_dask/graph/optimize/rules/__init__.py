"""The rewrite rules, a module each; `rewrite` applies them in order.

A rule has a name, the reason it pays, a condition and a replacement (`rule`). Those for graphs see
a whole graph; those for tasks are tried on each fused task in one pass (`pushdown`). They import
`calls`, `graph.read` and `graph.write`, whose tasks they know, the interface of frames, and of each
other only what they extend. Workers import the functions that tasks call (`reduce_block`,
`index_block`).
"""
