"""Writes of frames: many processes stage chunks; a commit joins and publishes them.

`targets` is the entry, `staging` the protocol of all writes. `local_staging` writes new local
frames and `local_update` changes old ones, one writer at a time (`locks`), with `local_names` and
`own_files`. `object_staging` writes to stores of fsspec, with `object_store` and `s3_join`.
`leftovers` finds abandoned staging areas. The modules may import from `storage.read`.
"""
