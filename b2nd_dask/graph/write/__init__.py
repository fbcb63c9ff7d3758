"""`to_b2nd`: a dask array as a new frame, or as a change of one."""
