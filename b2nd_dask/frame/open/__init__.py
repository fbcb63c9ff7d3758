"""From a location to a parsed frame, which is cached in the process.

`opening` reads and parses the metadata within bounds. `cache` keeps opened frames of one version,
which know whether they are current and may be read. `embedded` reads frames inside an embed store.
Imports only `format` and `storage`.
"""
