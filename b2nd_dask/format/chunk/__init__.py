"""Compressed chunks: parse and check the header, encode and decode, extract and join blocks.

`chunk_header` verifies chunks, and it alone creates a `ChunkHeader`; `codec` requires one.
`compression` describes how chunks are compressed and computes the defaults.
Imports only `errors`; only `codec` and `compression` call `blosc2`.
"""
