"""Labels of vlmeta and manifests: values, or our errors, whatever the bytes are."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.labels import MAX_COORDS_NBYTES, MAX_NAME_LENGTH, unpack_labels
from b2nd_dask.format.manifest import MAX_MANIFEST_NBYTES, parse_manifest
from tests.strategies import examples

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.complex_numbers()
)
values = st.recursive(
    scalars | st.builds(np.array, st.lists(st.integers(0, 9), max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = (
    "dims var is_coord coord_name attrs b2nd.attrs coords units long_name dtype labels b2nd.x other"
)
likely = st.sampled_from(
    [["x"], ["x", "y"], ["_scalar"], [], "x", True, "1", "string", "{}", '{"a": 1}']
) | st.just(["a", "b", "c"])
entries = st.dictionaries(st.sampled_from(NAMES.split()), values | likely)
shapes = st.lists(st.integers(0, 3), max_size=3)


@given(entries=entries, shape=shapes)
@examples(100)
def test_anything_is_labels_or_an_error(entries, shape):
    try:
        labels = unpack_labels(entries, shape)
    except B2ndError:
        return
    # an array of one element may stand for a scalar
    assert len(labels.dims) == len(shape) or (shape == [1] and not labels.dims)
    assert all(isinstance(dim, str) for dim in labels.dims)
    assert labels.name is None or isinstance(labels.name, str)
    assert all(isinstance(name, str) for name in (*labels.attrs, *labels.coords))
    assert all(isinstance(raw, bytes) for raw in labels.coords.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
MANIFEST = "data_vars coords dims attrs variable_attrs geogrid lineage group_by b2nd zstd_dict"
manifests = st.dictionaries(
    st.sampled_from(MANIFEST.split()),
    json_values
    | st.sampled_from([["t"], {"t": {"a": 1}}, {"t": 3}, {"version": 1, "attrs": "gaFhAQ=="}]),
)


@given(raw=manifests.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=20))
@examples(100)
def test_any_manifest_is_parsed_or_an_error(raw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = parse_manifest(raw)
        except B2ndError:
            return
    for name in found.names:
        assert "/" not in name
        assert not name.startswith(".")
    assert all(type(size) is int and size >= 0 for size in found.sizes.values())


def test_arrays_in_place_of_flags_are_none():
    pair, labels = np.array([1, 1]), ["a", "b", "c"]
    assert not unpack_labels({"dims": ["x"], "is_coord": pair}, (3,)).is_coord
    found = {"dims": ["x"], "is_coord": True, "dtype": pair, "labels": labels}
    assert unpack_labels(found, (3,)).strings is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"dims": ["x" * (MAX_NAME_LENGTH + 1)]}, "characters"),
        ({"dims": ["x"], "coords": {"x": bytes(MAX_COORDS_NBYTES + 1)}}, "the maximum is"),
        ({"dims": ["x"], "coords": [("x", b"")]}, "map of names to frames"),
        ({"dims": ["x"], "coords": {"x": "text"}}, "not the bytes of a frame"),
        ({"dims": ["x"], "attrs": '{"a": 1'}, "it is not JSON"),
        ({"dims": ["x"], "is_coord": True, "dtype": "string", "labels": ["a"]}, "1 elements"),
    ],
)
def test_bounds(entries, message):
    with pytest.raises(B2ndError, match=message):
        unpack_labels(entries, (3,))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b" " * (MAX_MANIFEST_NBYTES + 1), "the maximum is"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b'{"dims": {"x": ' + b"9" * 5000 + b"}}", "it is not JSON"),
        (b'{"coords": [".x"]}', "not a valid file name"),
        (b'{"b2nd": {"version": 1, "groups": ["\\ud800"]}}', "not a valid file name"),
        (b'{"data_vars": ["' + b"x" * 251 + b'"]}', "not a valid file name"),
        (b'{"data_vars": ["x", "x"]}', "twice"),
        (b'{"dims": {"x": true}}', "length of 'x' is True"),
        (b'{"geogrid": {"t": {"scale_factor": 1}}}', "add_offset"),
        (
            b'{"geogrid": {"t": {"scale_factor": 1' + b"0" * 400 + b', "add_offset": 0}}}',
            "scale_factor",
        ),
        (b'{"b2nd": {"version": 1, "attrs": "!"}}', "base64"),
    ],
)
def test_manifests_that_are_none(raw, message):
    with pytest.raises(B2ndError, match=message):
        parse_manifest(raw)


def test_typed_attributes_win():
    entries = {
        "dims": ["x"],
        "attrs": '{"n": 1, "m": 2}',
        "b2nd.attrs": {"n": np.array(1, "int16"), "t": (1, 2)},
        "cratio": 3,
        "mine": 4,
    }
    attrs = unpack_labels(entries, (3,)).attrs
    assert attrs == {"n": 1, "m": 2, "t": (1, 2), "mine": 4}
    assert attrs["n"].dtype == "int16"
