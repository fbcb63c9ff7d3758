"""Several labelled arrays as one directory or archive of frames.

`tree` describes lazy arrays, and builds their vlmeta and the manifest. `staged` lays out the frames
in a directory or archive, and publishes it at once. `places` locates the frames and groups of an
existing dataset.
"""
