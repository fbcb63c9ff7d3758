"""Front end for `dask.array`: the layers of its graphs as nodes of an expression.

`layers` parses each layer once, by its kind and its function; `moves` knows slices and rechunks by
what their tasks do. `optimize` lowers the nodes, `write.bounded` makes passes of the moves.
"""
