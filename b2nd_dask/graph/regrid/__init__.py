"""Rechunk close to the read: frames are read in the new blocks, where that costs little.

``from_b2nd(p).rechunk(c)`` becomes ``from_b2nd(p, chunks=c)``. dask's own rechunk cuts and joins
blocks, in tasks that hold about all of the array, and on a cluster the parts travel. `hook` stands
in front of the method `rechunk`, `repeat` repeats on the new blocks what stands between the read
and the rechunk. Whether it pays says `graph.read.new_grid`. Imports `optimize`, to know functions.
"""
