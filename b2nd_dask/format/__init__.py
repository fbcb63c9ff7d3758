"""The bytes of a Blosc2 frame: pure functions that convert between bytes and typed values. No I/O.

One module for each section of a frame (`header`, `metalayers`, `index`, `trailer`),
`grid` for its geometry, `integrity` and `statistics` for the records of its chunks, `values` for
metadata, `labels` and `manifest` (`dataset.json`) for names, dims and attributes, and the folder
`chunk` for compressed chunks. docs/format.md describes the bytes.
`parse_*` reads and checks, `build_*` writes. The modules import only `errors`. `graph` imports
only `grid` and reaches the others through `frame`.
"""
