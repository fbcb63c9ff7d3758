"""Readers of byte ranges. Nothing here writes.

`location` is the entry: it distinguishes local paths, URLs and bytes, opens their readers, and
expands patterns. `remote` plans the requests for an object behind a URL. `ranged` and
`ranged_stores` send them, as each kind of store requires; `traffic` limits them, `prefetch` sends
them early. `connection` makes and shares file systems of fsspec. `container` finds the files of an
archive. The modules import from `storage`, never from `storage.write`.
"""
