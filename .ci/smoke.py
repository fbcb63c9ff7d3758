"""Smoke test of an installed package: make a frame, read it lazily, compare with NumPy."""

from pathlib import Path

import blosc2
import dask.array as da
import numpy as np

import b2nd_dask

assert "site-packages" in b2nd_dask.__file__, b2nd_dask.__file__
assert (Path(b2nd_dask.__file__).parent / "py.typed").is_file()

values = np.arange(60.0).reshape(6, 10)
blosc2.asarray(values, chunks=(4, 4), urlpath="smoke.b2nd", mode="w")
lazy = da.from_b2nd("smoke.b2nd")
assert lazy.chunks == ((4, 2), (4, 4, 2)), lazy.chunks
assert float(lazy.sum().compute()) == values.sum()
np.testing.assert_array_equal(b2nd_dask.open_b2nd("smoke.b2nd")[1:, ::-3], values[1:, ::-3])
print("smoke test passed:", b2nd_dask.__version__)
