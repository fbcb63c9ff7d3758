"""Writing: a dask array becomes a new frame, or a region or an extension of an existing frame.

`to_b2nd` is the entry point and runs jobs; `options` checks the user's options. `input_arrays`
converts the argument to a dask array. `parts` creates frames that jobs stage in parts, `regions`
plans changes of frames. `write_tasks` makes the graph of a job.

`frame.rechunk` plans writes within a memory limit: `rechunk` makes the jobs, for a frame to a
frame and for the rechunks of a dask array, which `bounded` finds.
Imports: `graph.read` and `frame`; of the format only the grid (`frame.write` knows the limits of
the format); of the front ends only `graph.layers`, for bounded memory and groups of small chunks.
"""
