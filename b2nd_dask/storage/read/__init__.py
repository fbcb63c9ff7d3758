"""Readers of byte ranges. Nothing here writes.

`location` is the entry: it distinguishes local paths, URLs and bytes, opens their readers, and
expands patterns. `remote` plans the requests for an object behind a URL. `ranged` and the modules
named after it send them, as each kind of store requires. `connection` makes and shares file systems
of fsspec. `container` finds the files of an archive. The modules import from `storage`, never from
`storage.write`.
"""
