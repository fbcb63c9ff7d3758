"""Bad input is an error before anything is written."""

import numpy as np
import pytest
import xarray as xr

X = np.arange(2)
BAD = {
    "slash": ({"a/b": ("x", X)}, {}, "cannot be the name of a file"),
    "dot": ({".a": ("x", X)}, {}, "cannot be the name of a file"),
    "case": ({"a": ("x", X), "A": ("x", X)}, {}, "differ in case alone"),
    "number": ({1: ("x", X)}, {}, "names are text"),
    "objects": ({"a": ("x", np.array([1, {}], object))}, {}, "Python objects"),
    "attribute": ({"a": ("x", X, {"o": object()})}, {}, "attribute 'o' of a"),
    "encoding": ({"a": ("x", X)}, {"encoding": {"a": {"zlib": 1}}}, "unknown are zlib"),
    "dim": ({"a": ("x", X)}, {"chunks": {"tiem": 1}}, "no dim 'tiem'"),
}


@pytest.mark.parametrize(("variables", "options", "match"), BAD.values(), ids=BAD)
def test_dataset(tmp_path, variables, options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        xr.Dataset(variables).b2nd.to_b2nd(tmp_path / "d.b2d", **options)
    assert not list(tmp_path.iterdir())


def test_names_of_targets(tmp_path):
    ds = xr.Dataset({"a": ("x", X)}, attrs={3: 4})
    with pytest.raises(TypeError, match="attribute 3"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2d")
    with pytest.raises(ValueError, match="one array"):
        ds.b2nd.to_b2nd(tmp_path / "d.b2nd")
    with pytest.raises(ValueError, match="to_dataset"):
        ds.a.b2nd.to_b2nd(tmp_path / "d.b2d")
    with pytest.raises(ValueError, match="local directory"):
        ds.b2nd.to_b2nd("s3://bucket/d.b2d")
    assert not list(tmp_path.iterdir())
