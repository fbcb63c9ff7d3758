"""Readers of byte ranges. Nothing here writes.

`location` is the way in: it distinguishes local paths, URLs and bytes, opens the reader of each,
and expands patterns.
`remote` plans the requests for an object behind a URL; `ranged` and the modules named after it send
them, in the way of each kind of store; `connection` makes and shares file systems of fsspec;
`container` finds the files of an archive. What stands in
`storage` itself may be imported, `storage.write` never.
"""
