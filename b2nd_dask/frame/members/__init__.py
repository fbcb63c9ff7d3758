"""Members of stores of python-blosc2, read in place.

A ``.b2d`` is a folder, a ``.b2z`` the same folder as a ZIP archive. Large members are files,
``KEY.b2nd`` for arrays; small members are in the embed store, ``embed.b2e``. A ``.b2e`` is an
embed store alone (docs/format.md, Stores). `store` opens all kinds and finds the frame of a key.
`listing` lists members and expands patterns of keys, and `writable` decides which paths may be
written.
"""
