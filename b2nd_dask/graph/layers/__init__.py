"""Front end for `dask.array`: the layers of its graphs become nodes of an expression.

`layers` parses each layer once, by its kind and its function; `moves` parses slices and rechunks
by their tasks. `optimize` lowers the nodes; `write.bounded` replaces the moves by passes.
"""
