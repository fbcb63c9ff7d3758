"""What the layers of a dask graph are: reads of frames, and what moves elements above them.

`layers` says it of single layers and of views through several, `slices` of layers that cut another
one. `graph.regrid` repeats layers on other blocks, `graph.write.rechunk` makes passes of views.
"""
