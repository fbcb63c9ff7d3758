"""xarray: the engine ``b2nd``, which opens frames, directories and stores as datasets.

`variables` makes xarray's variables from the frames and labels of a dataset, `backend_array` reads
them lazily or makes arrays of `from_b2nd` for ``chunks=``, and `backend` is the entry point.
"""

from b2nd_dask.lazy import require

require("xarray", "xarray")
