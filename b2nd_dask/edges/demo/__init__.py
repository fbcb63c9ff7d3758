"""The demo: how much of the Earth is land, out of core from a frame of the real land mask.

`landmask` makes the frame from the package global-land-mask, `land_cover` computes, reports and
draws. The command is `b2nd-dask demo`.
"""
