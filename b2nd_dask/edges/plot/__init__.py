"""Plots with matplotlib of the storage and the elements of arrays, out of core.

`chunks` shows the chunks of frames, `elements` the elements of arrays. `sources` opens the user's
input (paths, frames, dask arrays, DataArrays), also as planes, and makes axes and texts.
Only functions import matplotlib: `b2nd_dask.plot` can be imported without it.
"""
