"""Reads of an opened frame: a region, points, a reduction, or the stored bytes of each chunk.

Stages of a read: `plan` (which chunks and blocks), `fetch` (verified bytes, a checked header),
`decode` (elements in an array); `buffers` has the memory. `region`, `positions` and
`reduce` are the entry points, `scan` that for whole chunks; `reduction` merges partial results.
Imports `frame.open`, `format` and `storage`.
"""
