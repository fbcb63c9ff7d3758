"""Reading an opened frame: a region, points, or a reduction; or each chunk as it is.

The way of a read: `plan` (which chunks and blocks), `fetch` (verified bytes, a checked header),
`decode` and `scatter` (elements in an array), in `buffers`. `region`, `points` and `reduce` are the
entries, `scan` the one for whole chunks; `reduction` says how partial results accumulate.
Imports `frame.open`, `format` and `storage`.
"""
