"""xarray: the engine ``b2nd``, and writes of DataArrays, Datasets and DataTrees.

The engine: `variables` makes variables of frames and their labels, `backend_array` reads them
lazily or makes arrays of `from_b2nd` for ``chunks=``, and `backend` is the entry point. Writes:
`adapter` writes new targets, `append` changes datasets, `encoding` and `packing` encode variables.
"""

from b2nd_dask.lazy import require

require("xarray", "xarray")
