"""xarray's own tests of backends: what its datasets and trees lose in directories and archives.

A test that is another one here, or left out, says why: what cannot hold by design, or is not
promised.
"""

import asyncio
import contextlib
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from xarray.testing import assert_equal, assert_identical

suite = pytest.importorskip("xarray.tests.test_backends", reason="xarray without its tests")
trees = pytest.importorskip("xarray.tests.test_backends_datatree", reason="as above")
fixtures = pytest.importorskip("xarray.tests.conftest", reason="as above")
# xarray's tests turn this on, for all other tests of the process too
xr.set_options(warn_for_unclosed_files=False)

create_test_datatree = fixtures.create_test_datatree
simple_datatree = fixtures.simple_datatree
time_unit = fixtures.time_unit


@pytest.fixture(params=[False, True], ids=["numpy", "dask"])
def use_dask(request):
    return request.param


def left_out(reason):
    """A test of xarray that does not apply."""

    def test(self):
        pytest.skip(reason)

    return test


class Datasets(suite.CFEncodedBase):
    engine = "b2nd"
    suffix: str

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self._folder = tmp_path

    @contextlib.contextmanager
    def roundtrip(self, data, save_kwargs=None, open_kwargs=None, allow_cleanup_failure=False):
        path = self._folder / f"{len(list(self._folder.iterdir()))}{self.suffix}"
        self.save(data, path, **(save_kwargs or {}))
        with self.open(path, **(open_kwargs or {})) as ds:
            yield ds

    @contextlib.contextmanager
    def roundtrip_append(self, data, **options):
        path = self._folder / f"appended{self.suffix}"
        for number, key in enumerate(data.variables):
            self.save(data[[key]], path, mode="a" if number else "w")
        with self.open(path) as ds:
            yield ds

    def save(self, dataset, path, **options):
        return dataset.b2nd.to_b2nd(path, **options)

    # marked for a plugin of pytest
    def test_load_async(self):
        asyncio.run(suite.CFEncodedBase.test_load_async(self))

    test_write_store = left_out("a dataset is written at once: there is no store to dump to")
    test_roundtrip_None_variable = left_out("names must be text")  # noqa: N815

    def test_invalid_dataarray_names_raise(self):
        # the same errors, in words that say more
        for name, error in {0: TypeError, (4, 5): TypeError, "": ValueError}.items():
            with pytest.raises(error, match=r"^the variable .*: names"):
                self.save(xr.Dataset({name: ((), 1)}), self._folder / "x")

    def test_roundtrip_coordinates_with_space(self):
        # a frame says itself that it is a coordinate: nothing is lost, and nothing to warn of
        original = xr.Dataset(coords={"x": 0, "y z": 1})
        with self.roundtrip(original) as actual:
            assert_identical(original, actual)

    def test_coordinate_variables_after_dataset_roundtrip(self):
        # for the same reason all of them come back as coordinates, whatever `decode_coords` is
        original = self._create_cf_dataset()
        with self.roundtrip(original, open_kwargs={"decode_coords": "all"}) as actual:
            assert_identical(actual, original)
        with self.roundtrip(original) as actual:
            assert_equal(actual, original)

    def test_coordinates_encoding(self):
        # and no attribute `coordinates` is made for them; one that was asked for is kept
        original = xr.Dataset(
            {"temp": ("x", [0, 1]), "precip": ("x", [0, -1])},
            {"lat": ("x", [2, 3]), "lon": ("x", [4, 5])},
        )
        original["temp"].encoding["coordinates"] = "lat"
        with self.roundtrip(original) as actual:
            assert_identical(actual, original)
            assert actual["temp"].encoding["coordinates"] == "lat"
            assert "coordinates" not in actual["precip"].encoding
        with self.roundtrip(original, open_kwargs={"decode_coords": False}) as actual:
            assert actual["temp"].attrs["coordinates"] == "lat"
            assert "coordinates" not in actual["precip"].attrs

    def test_roundtrip_string_with_fill_value_nchar(self):
        # an error there, too, of another type
        values = np.array(["ab", "cdef", np.nan], dtype=object)
        original = xr.Dataset({"x": ("t", values, {}, {"dtype": "S1", "_FillValue": b"X"})})
        with pytest.raises(ValueError, match="would come back as b'ab'"):
            self.save(original, self._folder / "x")

    def test_encoding_kwarg_fixed_width_string(self):
        # text becomes bytes, but no array of characters
        for strings in [[b"foo", b"bar", b"baz"], ["foo", "bar", "baz"]]:
            ds = xr.Dataset({"x": strings})
            with self.roundtrip(ds, save_kwargs={"encoding": {"x": {"dtype": "S1"}}}) as actual:
                assert actual["x"].encoding.get("dtype", actual["x"].dtype) == "S3"
                assert_identical(actual, ds)

    def test_encoding_unlimited_dims(self):
        # any dim can grow: of this option of netCDF nothing is kept
        ds = xr.Dataset({"x": ("y", np.arange(10.0))})
        ds.encoding = {"unlimited_dims": ["y"]}
        with self.roundtrip(ds) as actual:
            assert_equal(ds, actual)


class TestDirectories(Datasets):
    suffix = ".b2d"


class TestArchives(Datasets):
    suffix = ".b2z"
    test_append_write = left_out("an archive is written at once, and not changed")
    test_append_overwrite_values = test_append_write
    test_append_with_invalid_dim_raises = test_append_write


class Trees(trees.NetCDFIOBase):
    engine = "b2nd"
    suffix: str

    @pytest.fixture(autouse=True)
    def _write_frames(self, monkeypatch):
        def to_netcdf(tree, path, engine=None, **options):
            written = Path(path).with_suffix(self.suffix)
            tree.b2nd.to_b2nd(written, **options)
            # xarray opens it by the other name
            written.rename(path)

        monkeypatch.setattr(xr.DataTree, "to_netcdf", to_netcdf)

    def test_to_netcdf(self, tmpdir, simple_datatree):
        # without `_close`: frames are not kept open
        simple_datatree.to_netcdf(tmpdir / "x")
        with xr.open_datatree(tmpdir / "x", engine="b2nd") as found:
            assert_equal(simple_datatree, found)

    def test_netcdf_encoding(self, tmpdir, simple_datatree):
        # of a codec by its name here
        encoding = {"/set2": {"a": {"cparams": {"codec": "lz4"}}}}
        simple_datatree.to_netcdf(tmpdir / "x", encoding=encoding)
        with xr.open_datatree(tmpdir / "x", engine="b2nd") as found:
            assert found["/set2/a"].encoding["codec"] == "lz4"
            assert found["/a"].encoding["codec"] == "zstd"
        encoding["/not/a/group"] = {"foo": "bar"}
        with pytest.raises(ValueError, match="unexpected encoding group"):
            simple_datatree.to_netcdf(tmpdir / "y", encoding=encoding)

    test_no_redundant_dimensions = left_out("it looks into a file of netCDF")
    test_compute_false = left_out("a tree is written at once")
    test_default_write_engine = left_out("there is one engine")
    test_roundtrip_via_memoryview = left_out("datasets are files")
    test_to_memoryview_compute_false = test_roundtrip_via_memoryview


class TestTreesInDirectories(Trees):
    suffix = ".b2d"


class TestTreesInArchives(Trees):
    suffix = ".b2z"


del Datasets, Trees
