"""Labels of arrays: dims, name, coordinates and attributes, as bytes of a frame and of a directory.

`labels` has the value class, which entries of a frame's vlmeta are read as and made of, `manifest`
the same of `dataset.json`, which says what the frames of a directory are to each other. No files,
no xarray. What is read is checked: types, lengths and sizes (docs/format.md, Labels).
"""
