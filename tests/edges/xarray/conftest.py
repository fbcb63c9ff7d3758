import pytest

import b2nd_dask  # noqa: F401 - registers the accessor
from tests.edges.xarray.labelled import weather, write_dataset


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """One dataset as frames and as zarr, written by xarray: the paths of both."""
    root = tmp_path_factory.mktemp("weather")
    ds = weather()
    zarr = root / "weather.zarr"
    ds.to_zarr(zarr, consolidated=False, zarr_format=2)
    return write_dataset(ds, root / "weather", {"time": 10}), zarr


MARKERS = (
    "asyncio",
    "flaky",
    "network",
    "skip_if_param",
    "skip_with_dask_array",
    "xfail_with_dask_array",
)


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: of xarray's own tests")
