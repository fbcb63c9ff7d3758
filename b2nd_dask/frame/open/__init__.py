"""From a location to a parsed frame, which is cached in the process.

`opening` reads and parses the metadata within limits. `cache` has `OpenedFrame`, which checks that
its frame is current, and keeps opened frames. `embedded` reads frames inside an embed store.
Imports only `format` and `storage`.
"""
