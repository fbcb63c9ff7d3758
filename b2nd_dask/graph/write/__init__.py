"""Writing: a dask array as a new frame, or as a region or an extension of an existing one.

`to_b2nd` is the entry: `input_arrays` makes a dask array of its argument, `frame_options` plans the
frame, `parts` begins frames that others fill, and `write_tasks` says which elements go where
(`patch`, `checked_cast`) and makes the graph (`align`, `resume`). Imports `graph.read` and `frame`;
of the format only the grid, since limits of the format belong to `frame.write`; nothing of the
optimizer, but `align` calls dask's `rechunk`, in front of which `graph.regrid` may stand.
"""
