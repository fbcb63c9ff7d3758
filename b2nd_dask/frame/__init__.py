"""An opened frame, read by regions; a frame being written, from blocks to the commit.

`open` parses and caches what tasks read, `read` decodes, `write` encodes and commits. Above them:
`reference` is what tasks carry, `array` what users index, `access` opens it, `verify`, `seal` and
`compact` act on whole frames, `rechunk` plans the passes that give a frame other chunks,
`compressed` is a frame in memory. `members` locates arrays of the stores of python-blosc2; `join`
and `joined` make one array of several frames, `info` is a summary. Layers above import these, and
what they need of the folders. Nothing here knows dask.
"""
