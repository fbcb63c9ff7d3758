"""Plots with matplotlib: how arrays are stored, and what is in them, out of core.

`chunk_map` and `compression` look at the chunks of frames, `thumbnail` and `slices` at elements.
`sources` takes what users have (paths, frames, dask arrays, DataArrays), and makes axes and texts.
matplotlib is imported inside of functions only: `b2nd_dask.plot` is there without it.
"""
