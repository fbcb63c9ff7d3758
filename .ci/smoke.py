"""Smoke test of an installed package, away from its sources: smoke.py [EXTRA]...

Without an extra it has what the core has: frames are made and read, and what an extra would bring
says how to install it.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np

import b2nd_dask

VALUES = np.arange(60.0).reshape(6, 10)
#: Packages that only extras bring; click and rich come with dask and python-blosc2 today.
OPTIONAL = ("global_land_mask", "h5py", "matplotlib", "s3fs", "xarray", "zarr")


def core() -> None:
    assert "site-packages" in b2nd_dask.__file__, b2nd_dask.__file__
    assert (Path(b2nd_dask.__file__).parent / "py.typed").is_file()
    blosc2.asarray(VALUES, chunks=(4, 4), urlpath="smoke.b2nd", mode="w")
    lazy = da.from_b2nd("smoke.b2nd")
    assert lazy.chunks == ((4, 2), (4, 4, 2)), lazy.chunks
    assert float(lazy.sum().compute()) == VALUES.sum()
    np.testing.assert_array_equal(b2nd_dask.open_b2nd("smoke.b2nd")[1:, ::-3], VALUES[1:, ::-3])
    (lazy * 2).to_b2nd("twice.b2nd", mode="w")
    assert b2nd_dask.verify("twice.b2nd").ok
    assert "<svg" in b2nd_dask.open_b2nd("twice.b2nd")._repr_html_()


def core_alone() -> None:
    brought = [name for name in OPTIONAL if find_spec(name)]
    assert not brought, brought
    says_how_to_install("plot", lambda: b2nd_dask.plot.chunk_map("smoke.b2nd"))
    says_how_to_install("convert", lambda: b2nd_dask.convert("smoke.b2nd", "smoke.zarr"))
    says_how_to_install("s3", lambda: da.from_b2nd("s3://bucket/smoke.b2nd"))
    says_how_to_install("http", lambda: da.from_b2nd("https://localhost/smoke.b2nd"))


def says_how_to_install(extra: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ImportError as error:
        assert f"b2nd-dask[{extra}]" in str(error), error
    else:
        raise AssertionError(extra)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("b2nd-dask")
    return subprocess.run([script, *arguments], capture_output=True, text=True)


def cli() -> None:
    run = command("info", "smoke.b2nd")
    assert run.returncode == 0, run
    assert "float64" in run.stdout, run


def plot() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    b2nd_dask.plot.chunk_map("smoke.b2nd").figure.savefig("smoke.png")


def xarray() -> None:
    import xarray as xr

    ds = xr.Dataset({"t": (("x", "y"), VALUES)}, {"x": np.arange(6)})
    xr.testing.assert_identical(ds.b2nd.to_b2nd("smoke.b2d", mode="w").compute(), ds)


def convert() -> None:
    for name in ("smoke.zarr", "smoke.nc", "smoke.npy"):
        b2nd_dask.convert("smoke.b2nd", name, check=True, overwrite=True)


def s3() -> None:
    import fsspec

    fsspec.filesystem("s3", anon=True)


def http() -> None:
    import fsspec

    fsspec.filesystem("http")


EXTRAS = {each.__name__: each for each in (cli, plot, xarray, convert, s3, http)}

core()
for extra in sys.argv[1:]:
    EXTRAS[extra]()
if not sys.argv[1:]:
    core_alone()
print("smoke test passed:", b2nd_dask.__version__, *sys.argv[1:])
