"""Plots of frames and of the arrays in them, by matplotlib (``pip install 'b2nd-dask[plot]'``).

`chunk_map` and `compression` show how an array is stored, `thumbnail` and `slices` what is in it,
without loading it. matplotlib is imported when the first of them is called.
"""

from b2nd_dask.edges.plot.chunks import chunk_map, compression
from b2nd_dask.edges.plot.elements import slices, thumbnail

__all__ = ["chunk_map", "compression", "slices", "thumbnail"]
