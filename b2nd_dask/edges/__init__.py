"""Interfaces for users and other libraries, on top of frames and graphs; no lower layer imports it.

`cli` is the command line with its demo, `display` the HTML in notebooks, `plot` the plots, `xarray`
the engine and writer of datasets, `convert` the conversions of other formats. `datasets` stores
several arrays in one directory; `xarray` and `convert` use it.
"""
