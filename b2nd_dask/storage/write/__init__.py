"""Writes of frames: many processes stage chunks; a commit joins and publishes them.

`targets` is the entry; it also finds abandoned staging areas. `staging` is the protocol of all
writes. `local_staging` writes new local frames, and `local_update` changes existing ones, one
writer at a time; `local_names` publishes and removes. `object_staging` writes to stores of fsspec,
with `object_store` and `s3_join`. The modules may import from `storage.read`.
"""
