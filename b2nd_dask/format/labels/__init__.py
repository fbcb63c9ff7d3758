"""Labels of arrays: dims, name, coordinates and attributes, as bytes of frames and directories.

`labels` converts between the class `Labels` and entries of a frame's vlmeta, `attrs` the values of
attributes. `manifest` does this for `dataset.json`, which describes the frames of a directory as
one dataset. No file access, no xarray. Readers check types, lengths and sizes (docs/format.md,
Labels).
"""
