"""A write warns if the new frame loses attributes, dimensions or coordinates, with advice."""

import pickle
import warnings

import blosc2
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd

VALUES = np.arange(24.0).reshape(4, 6)
ATTRIBUTES = {"units": "mm", "history": ["made"]}


@pytest.fixture
def source(tmp_path):
    to_b2nd(VALUES, tmp_path / "source.b2nd", chunks=(2, 6), vlmeta=ATTRIBUTES)
    return tmp_path / "source.b2nd"


WAYS = {
    "computed": lambda path: from_b2nd(path) * 2,
    "reduced": lambda path: from_b2nd(path).mean(axis=0),
    "sliced": lambda path: from_b2nd(path)[1:, ::2],
    "frame": open_b2nd,
    "array of python-blosc2": lambda path: blosc2.open(str(path)),
    "sent": lambda path: pickle.loads(pickle.dumps(from_b2nd(path) + 1)),
    "rechunked": lambda path: from_b2nd(path).rechunk((4, 3)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compute", [True, False])
def test_attributes_of_a_frame(source, target, way, compute):
    x = WAYS[way](source)
    with pytest.warns(UserWarning, match=r"dropped: attributes 'history', 'units'") as seen:
        to_b2nd(x, target, compute=compute)
    (warning,) = seen
    assert warning.filename == __file__
    assert 'vlmeta= (a mapping; "keep" for the frame that is read, {} for none)' in str(
        warning.message
    )
    # the advice of the warning
    to_b2nd(x, target, mode="w", vlmeta="keep")
    assert dict(open_b2nd(target).vlmeta) == ATTRIBUTES
    to_b2nd(x, target, mode="w", vlmeta={"mine": 1})
    to_b2nd(x, target, mode="w", vlmeta={})
    assert not open_b2nd(target).vlmeta


def test_nothing_is_dropped_by_a_write_that_is_refused(source, target):
    to_b2nd(VALUES, target)
    # a warning would be an error here
    with pytest.raises(FileExistsError):
        to_b2nd(from_b2nd(source), target)


def test_the_method_and_appends_that_begin_a_frame(source, target):
    with pytest.warns(UserWarning, match="attributes 'history', 'units'") as seen:
        (from_b2nd(source) * 2).to_b2nd(target, mode="a", append_axis=0)
    assert seen[0].filename == __file__
    # an existing frame keeps its metadata
    (from_b2nd(source) * 2).to_b2nd(target, mode="a", append_axis=0)
    (from_b2nd(source) * 2).to_b2nd(target, mode="r+", region=slice(0, 4))


def test_metalayers_and_several_frames(source, target, tmp_path):
    other = to_b2nd(VALUES, tmp_path / "other.b2nd", meta={"grid": 1}, vlmeta={"also": 2})
    with pytest.warns(UserWarning, match=r"metalayers 'grid' .*\. To .*, pass meta= .a map.*keep"):
        to_b2nd(other, target, vlmeta="keep")
    with pytest.warns(UserWarning, match="these are dropped") as seen:
        to_b2nd(other + from_b2nd(source), target, mode="w")
    (warning,) = seen
    text = str(warning.message)
    assert "attributes 'also', 'history', 'units' of the frames that are read" in text
    assert "metalayers 'grid' of the frames that are read" in text
    assert "keep" not in text


@pytest.mark.parametrize(
    "x",
    [
        VALUES,
        da.zeros((4, 6), chunks=2),
        xr.DataArray(VALUES),
        xr.DataArray(VALUES).data,
    ],
    ids=["ndarray", "dask", "plain DataArray", "its data"],
)
def test_nothing_to_lose(x, target):
    to_b2nd(x, target)
    # checksums are no attributes
    (from_b2nd(target) + 1).to_b2nd(target, mode="w")
    b = blosc2.asarray(VALUES, urlpath=str(target), mode="w")
    to_b2nd(b, target, mode="w")


@pytest.mark.parametrize("chunks", [None, (2, 3)])
def test_labels_of_a_data_array_are_kept_unless_they_are_dropped_on_purpose(target, chunks):
    x = xr.DataArray(VALUES, dims=("time", "x"), coords={"height": 2.0}, attrs=ATTRIBUTES)
    x = x if chunks is None else x.chunk(dict(zip(x.dims, chunks, strict=True)))
    # a warning would be an error here
    xr.testing.assert_identical(to_b2nd(x, target).compute(), x.compute())
    to_b2nd(x, target, mode="w", vlmeta={})
    assert not open_b2nd(target).vlmeta
    # a region of another frame has no labels to keep
    to_b2nd(x, target, mode="r+", region=...)


def test_a_data_array_of_a_frame(source, target):
    x = xr.DataArray(from_b2nd(source), dims=("y", "x"), attrs={"mine": 1})
    # attributes of the DataArray, not of the frame
    assert to_b2nd(x, target).attrs == {"mine": 1}


def test_a_graph_of_a_frame_that_is_not_here(source, target):
    sent = pickle.dumps(from_b2nd(source) * 2)
    source.rename(source.with_name("moved.b2nd"))
    x = pickle.loads(sent)
    with warnings.catch_warnings():
        # attributes may be unknown in the other process
        warnings.simplefilter("ignore", UserWarning)
        to_b2nd(x, target, compute=False)
