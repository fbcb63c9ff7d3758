"""Members of the stores of python-blosc2, which are read in place.

A ``.b2d`` is a folder, a ``.b2z`` the same folder as a ZIP archive: large members are files,
``KEY.b2nd`` for arrays; the small ones are in its embed store, ``embed.b2e``. A ``.b2e`` is an
embed store alone (docs/format.md, Stores). `store` opens any of them and finds the frame of a key,
`listing` says what it holds and which keys a pattern matches, `writable` which paths may be
written; `files` knows the names.
"""
