"""What people and other libraries use on top of frames and graphs; nothing below imports it.

`cli` is the command line and `demo` what its demo computes, `display` the HTML in notebooks, `plot`
the plots, `xarray` the engine and writer of datasets, `convert` the conversions of other formats.
`datasets` lays several arrays out as a directory, for the last two. `inputs` lets `to_b2nd` take
objects of other libraries; `extras` imports packages that only some users have.
"""
