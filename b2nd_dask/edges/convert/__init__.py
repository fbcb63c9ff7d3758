"""Conversions between frames and zarr, HDF5 / NetCDF-4 and npy, out of core, all or nothing.

`convert` is the public function. A reader (`read_*`) makes a `Tree` of a source: lazy arrays with
dims and attributes. `*_writer` checks a tree, and returns the function that writes it into a hidden
directory beside the target; `staged` then publishes it at once. `to_b2nd` takes arrays and groups
of zarr and h5py likewise. The packages of the other formats are imported at first use.
"""
