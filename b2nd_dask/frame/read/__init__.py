"""Reads of an opened frame: a region, points, a reduction, or the stored bytes of each chunk.

Stages of a read: `plan` (chunks and blocks), `fetch` (verified bytes, checked headers), `decode`
(elements in an array); `buffers` has the memory, `read_cost` estimates. The entry points are
`region`, `positions` and `reduce`, for stored chunks `scan`; `reduction` merges partial results.
Imports `frame.open`, `format` and `storage`.
"""
