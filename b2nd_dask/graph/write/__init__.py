"""Writing: a dask array as a new frame, or as a region or an extension of an existing one.

`to_b2nd` is the entry, which runs jobs, `options` what the user asks for. `input_arrays` makes a
dask array of the argument; `regions` begins frames that jobs stage parts of, and changes frames,
and `write_tasks` makes the graph of a job.
`frame.rechunk` plans what is written within a stated memory: `rechunk` from frame to frame,
`bounded` what dask would have moved, and `rechunk_job` makes the tasks of both.
Imports `graph.read` and `frame`; of the format only the grid, since limits of the format belong to
`frame.write`; of the optimizer only the nodes of `graph.layers`, where memory is bounded.
"""
