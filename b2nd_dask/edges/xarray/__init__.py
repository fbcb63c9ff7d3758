"""xarray: the engine ``b2nd``, which opens frames, directories and stores as datasets.

`variables` makes xarray's variables of the frames and labels of a dataset, `backend_array` reads
them lazily without dask, `dask_arrays` makes the arrays of `from_b2nd` under ``chunks=``, and
`backend` is the entry point. Names of xarray that are not public stand in `_xarray_compat` alone.
"""

from b2nd_dask.edges.extras import require

require("xarray", "xarray")
