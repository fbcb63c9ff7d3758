"""Plots with matplotlib of the storage and the elements of arrays, out of core.

`chunks` shows the chunks of frames, `thumbnail` and `slices` show the elements.
`sources` opens the user's input (paths, frames, dask arrays, DataArrays) and makes axes and texts.
Only functions import matplotlib: `b2nd_dask.plot` can be imported without it.
"""
