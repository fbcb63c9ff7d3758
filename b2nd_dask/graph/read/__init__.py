"""`from_b2nd`: a frame as a dask array."""
