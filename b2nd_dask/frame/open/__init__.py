"""From a location to a parsed frame, which the process keeps.

`opening` parses header and geometry, `tail` reads index and trailer within bounds, `cache` keeps
opened frames of one version, `embedded` reads those inside an embed store,
`validity` says whether one may be read and is still current.
Imports `format` and `storage` alone.
"""
