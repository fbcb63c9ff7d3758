"""Compressed chunks: check headers, encode and decode chunks, extract and join blocks.

`chunk_header` verifies chunks, and it alone creates a `ChunkHeader`; `codec` requires one.
`compression` has the compression parameters and their defaults.
Imports only `errors`; only `codec` and `compression` call `blosc2`.
"""
