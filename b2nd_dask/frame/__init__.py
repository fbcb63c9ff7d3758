"""An opened frame, read by regions; a frame being written, from blocks to the commit.

`open` parses and caches what tasks read, `read` decodes, `write` encodes and commits. Above them:
`reference` is what tasks carry, `array` what users index, `access` opens it, `verify` and `compact`
act on whole frames. Layers above import these five, and what they need of `read` and `write`.
Nothing here knows dask.
"""
