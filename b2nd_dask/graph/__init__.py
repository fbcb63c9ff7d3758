"""Dask graphs out of frames and back. The only layer that imports dask."""
