"""The dataset of the case `analyst` in the format of each library, and functions that open it.

Four years of daily maps on a grid of one degree: temperature packed to int16 by CF, with some
missing values, geopotential height in float32, and rain, which is mostly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.model import Contender, Dataset, Paths
from benchmarks.peers import use_dask_threads, use_zarr_threads
from benchmarks.peers_dask_array import NEEDS, use_dask_array

SEED = 20261126
SHAPE, QUICK_SHAPE = (1461, 181, 360), (365, 37, 72)
DIMS = ("time", "latitude", "longitude")
#: Days in a chunk.
TIME_CHUNK = 61
PACKED = {"dtype": "int16", "scale_factor": 0.002, "add_offset": 273.15, "_FillValue": -32768}
#: Number of patterns whose sum is the weather.
MODES = 60

B2ND, ZARR, ZARR_TUNED, NETCDF = "b2nd", "zarr", "zarr tuned", "netCDF4"
B2ND_EXPRESSIONS = "b2nd, dask_array"
#: Computes the result, an array, from a dataset.
Work = Callable[[Any], Any]


def dataset(shape: tuple[int, int, int]) -> Any:
    """The variables, as a dataset of xarray in memory."""
    import pandas as pd
    import xarray as xr

    days, latitudes, longitudes = shape
    coords = {
        "time": pd.date_range("2001-01-01", periods=days),
        "latitude": np.linspace(90, -90, latitudes, dtype="f4"),
        "longitude": np.linspace(0, 360, longitudes, endpoint=False, dtype="f4"),
    }
    rng = np.random.default_rng(SEED)
    season = np.cos(2 * np.pi * np.arange(days) / 365.25)[:, None, None]
    north = np.sin(np.deg2rad(coords["latitude"]))[None, :, None]
    weather, wind, clouds = (_weather(rng, shape) for _ in range(3))
    t2m = 288 - 40 * north**2 - 12 * season * north + 4 * weather
    t2m += rng.normal(0, 0.1, shape).astype("f4")
    t2m[rng.random(shape, "f4") < 0.001] = np.nan
    z500 = 55000 - 4000 * north**2 - 900 * season * north + 700 * wind
    z500 = np.round(z500 * 4) / 4
    pr = np.maximum(clouds - 1.2, 0) * 2e-4
    variables = {"t2m": t2m, "z500": z500, "pr": pr}
    return xr.Dataset(
        {name: (DIMS, values.astype("f4")) for name, values in variables.items()}, coords
    )


def _weather(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Smooth patterns whose amplitudes change from day to day; their variance is about 1."""
    days, latitudes, longitudes = shape
    latitude = np.linspace(-np.pi / 2, np.pi / 2, latitudes)[:, None]
    longitude = np.linspace(0, 2 * np.pi, longitudes, endpoint=False)[None, :]
    waves = rng.integers(1, 12, (MODES, 2))
    phases = rng.uniform(0, 2 * np.pi, (MODES, 2))
    patterns = np.stack(
        [
            np.cos(across * longitude + one) * np.sin(along * latitude + other)
            for (along, across), (one, other) in zip(waves, phases, strict=True)
        ]
    )
    strengths = rng.normal(0, 1, (days, MODES))
    for day in range(1, days):
        strengths[day] = 0.8 * strengths[day - 1] + 0.6 * strengths[day]
    flat = strengths.astype("f4") @ patterns.reshape(MODES, -1).astype("f4")
    return (flat / np.sqrt(MODES / 4)).reshape(shape)


@lru_cache(maxsize=1)
def _held(quick: bool) -> Any:
    """The dataset, made once for all formats."""
    return dataset(QUICK_SHAPE if quick else SHAPE)


@dataclass(frozen=True)
class Format:
    """Functions of a library that write and open the dataset."""

    name: str
    filename: str
    write: Callable[[Any, Path], None]
    """Writes a packed dataset in chunks from memory."""
    save: Callable[[Any, Path], Any]
    """Writes a computed dataset with the options that the library chooses."""
    open: Callable[[Path], Any]
    needs: tuple[str, ...] = ()


def encoding(made: Any, **others: Any) -> dict[str, dict[str, Any]]:
    """The packing, and options for each variable."""
    return {name: {**(PACKED if name == "t2m" else {}), **others} for name in made.data_vars}


def chunks_of(made: Any) -> tuple[int, int, int]:
    return TIME_CHUNK, *made.t2m.shape[1:]


def write_b2nd(made: Any, path: Path) -> None:
    save_b2nd(made, path, encoding=encoding(made, chunks=chunks_of(made)))


def save_b2nd(made: Any, path: Path, **options: Any) -> None:
    from b2nd_dask import to_b2nd

    to_b2nd(made, path, **options)


def write_zarr(made: Any, path: Path) -> None:
    save_zarr(made, path, encoding=encoding(made, chunks=chunks_of(made)))


def save_zarr(made: Any, path: Path, **options: Any) -> None:
    made.to_zarr(path, consolidated=False, **options)


def write_zarr_tuned(made: Any, path: Path) -> None:
    own = encoding(made, chunks=chunks_of(made), compressors=[_blosc()])
    made.to_zarr(path, encoding=own, consolidated=False)


def save_zarr_tuned(made: Any, path: Path) -> None:
    # the given encoding replaces the whole encoding of a variable
    packed = {
        name: {key: values.encoding[key] for key in PACKED if key in values.encoding}
        for name, values in made.data_vars.items()
    }
    own = {name: {**kept, "compressors": [_blosc()]} for name, kept in packed.items()}
    made.to_zarr(path, encoding=own, consolidated=False)


def _blosc() -> Any:
    """The advice of zarr's guides for speed."""
    from zarr.codecs import BloscCodec

    return BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")


def write_netcdf(made: Any, path: Path) -> None:
    options = {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": chunks_of(made)}
    made.to_netcdf(path, engine="netcdf4", encoding=encoding(made, **options))


def save_netcdf(made: Any, path: Path) -> None:
    made.to_netcdf(path, engine="netcdf4")


def _opened(engine: str, **options: Any) -> Callable[[Path], Any]:
    def opened(path: Path) -> Any:
        import xarray as xr

        return xr.open_dataset(path, engine=engine, chunks={}, **options)

    return opened


FORMATS = (
    Format(B2ND, "days.b2d", write_b2nd, save_b2nd, _opened("b2nd")),
    Format(ZARR, "days.zarr", write_zarr, save_zarr, _opened("zarr", consolidated=False)),
    Format(
        ZARR_TUNED,
        "days.zarr",
        write_zarr_tuned,
        save_zarr_tuned,
        _opened("zarr", consolidated=False),
    ),
    Format(NETCDF, "days.nc", write_netcdf, save_netcdf, _opened("netcdf4"), ("netCDF4",)),
)


def stored(form: Format, quick: bool) -> Dataset:
    """The dataset in a format."""
    recipe = {
        "data": "weather of random waves",
        "seed": SEED,
        "shape": QUICK_SHAPE if quick else SHAPE,
        "packed": PACKED,
        "time_chunk": TIME_CHUNK,
        "modes": MODES,
        "format": form.name,
    }
    needs = ("xarray", *form.needs)
    return Dataset(
        form.name, form.filename, recipe, lambda path: form.write(_held(quick), path), needs
    )


def reader(form: Format, work: Work, *, use_flox: bool = False) -> Contender:
    """A format by xarray through `dask.array`; `work` gets the dataset.

    By default without flox, which does not know `dask_array`.
    """

    def prepare(paths: Paths, threads: int) -> Callable[[], Any]:
        import xarray as xr

        use_dask_threads(threads)
        if form.name.startswith(ZARR):
            use_zarr_threads(threads)
        xr.set_options(use_flox=use_flox)
        return lambda: np.asarray(work(form.open(paths[form.name])))

    needs = ("xarray", *(("flox",) if use_flox else ()), *form.needs)
    return Contender(form.name, prepare, is_ours=form.name == B2ND, needs=needs)


def expression_reader(work: Work) -> Contender:
    """Ours by xarray through `dask_array`."""
    through_dask = reader(FORMATS[0], work)

    def prepare(paths: Paths, threads: int) -> Callable[[], Any]:
        use_dask_array()
        return through_dask.prepare(paths, threads)

    return Contender(B2ND_EXPRESSIONS, prepare, is_ours=True, needs=("xarray", *NEEDS))
