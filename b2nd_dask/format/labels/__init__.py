"""Labels of arrays: dims, name, coordinates and attributes, as bytes of a frame and of a directory.

`labels` has the value class, and makes it of the entries of a frame's vlmeta; `manifest` parses
`dataset.json`, which says what the frames of a directory are to each other, and `pack` makes the
bytes of both. No files, no xarray. What is read is checked: types, lengths and sizes
(docs/format.md, Labels).
"""
