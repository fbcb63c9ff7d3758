"""Metadata values that try to break the reader."""

import struct

import numpy as np
import pytest

from b2nd_dask import B2ndError, open_b2nd, to_b2nd
from b2nd_dask.format.values import pack_value, unpack_value


@pytest.mark.parametrize("code", [45, 46])
def test_nested_extensions_end_before_the_stack_does(code):
    value = b"\x90"
    for _ in range(300):
        value = b"\xc9" + struct.pack(">IB", len(value), code) + value
    with pytest.raises(B2ndError, match="nests more than"):
        unpack_value(value)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    value = frozenset([1])
    for _ in range(20):
        value = frozenset([value])
    with pytest.raises(TypeError, match="'deep'"):
        to_b2nd(np.ones(3), tmp_path / "x.b2nd", vlmeta={"deep": value})
    assert list(tmp_path.iterdir()) == []


def test_values_round_trip(tmp_path):
    values = {
        "t": (1, (2.5, "x")),
        "c": 1 - 2j,
        "s": {1, 2},
        "n": None,
        "b": b"\0",
        "i": np.int8(3),
    }
    to_b2nd(np.ones(3), tmp_path / "x.b2nd", vlmeta=values)
    assert dict(open_b2nd(tmp_path / "x.b2nd").vlmeta) == values
    assert unpack_value(pack_value({"a": [1]})) == {"a": [1]}
