"""Frames being written: chunks staged by many processes, joined and published at the end.

`targets` is the way in, `staging` what all writes do. `local_staging` and
`local_update` write new files and change old ones (one at a time: `locks`), by way of
`local_names` and `own_files`; `object_staging` writes to stores of fsspec, by way of
`object_store` and `s3_join`. `leftovers` finds what a write has left. `storage.read` may be
imported.
"""
