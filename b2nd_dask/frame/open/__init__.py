"""From a location to a parsed frame, which is cached in the process.

`opening` parses the metadata and checks whether a frame is current and may be read. `tail` reads
index and trailer within bounds, `cache` keeps opened frames of one version, `embedded` reads
frames inside an embed store.
Imports only `format` and `storage`.
"""
