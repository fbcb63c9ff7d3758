"""Several labelled arrays as one directory or archive of frames.

`tree` describes arrays that are not read yet, and makes vlmeta and the manifest of them; `staged`
publishes a directory or file at once, and `frames` lays the frames out. `places` says where the
arrays of a dataset lie and what is beside them.
"""
