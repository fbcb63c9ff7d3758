"""From a location to a parsed frame, which the process keeps.

`opening` parses the metadata, and says whether a frame may be read and is still current; `tail`
reads index and trailer within bounds, `cache` keeps opened frames of one version, `embedded` reads
those inside an embed store.
Imports `format` and `storage` alone.
"""
