"""Dask graphs out of frames. The only layer that imports dask."""
