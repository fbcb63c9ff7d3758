"""One opened frame, read by regions; one frame being written, from blocks to the commit.

`open` parses and caches metadata for tasks, `read` decodes, `write` encodes and commits. Above
them, `reference` is the reference in tasks, `array` the array-like of users; `access` opens it.
`checksums` and `upkeep` process whole frames, `rechunk` plans passes that change the chunks,
`compressed` is a frame in memory. `members` locates arrays in stores of python-blosc2, `joined`
combines several frames into one array, `info` describes a frame. Nothing here imports dask.
"""
