"""Dtype texts as damaged and hostile files have them: a dtype, or an error of this package."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import blosc2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError, UnsupportedFrameError, open_b2nd, to_b2nd
from b2nd_dask.format.dtypes import dtype_of_descr, format_dtype, parse_dtype
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Pieces of what `repr` writes of a dtype, and of what it never does.
PIECES = ["[", "]", "(", ")", "{", "}", "{{}}", "{[]: 1}", ",", ":", "'a'", "'<i4'", "'<M8[ns]'"]
PIECES += ["('a', '<i4')", "('b', '<f8', (2,))", "('a', '<i4', -1)", "'V0'", "'O'", "'U536870911'"]
PIECES += ["2", "-", "10**9", "9" * 30, "1.5", "1j", "None", "True", "b'x'", "f''", "lambda: 0"]
PIECES += ["'", '"', "\\", "'\\d'", "'\\x00'", "'\\ud800'", "\0", "\n", "#", " ", "é", "dtype("]

ATOMS = st.one_of(
    st.integers(), st.text(max_size=4), st.binary(max_size=3), st.none(), st.booleans(), st.floats()
)
NAMES = st.sampled_from(["<i4", "<f8", "|S5", "<M8[ns]", "<M8[99999999999ns]", "S2147483647", "V0"])
VALUES = st.recursive(
    ATOMS | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=10,
)
FIELDS = st.tuples(st.text(max_size=3), NAMES | VALUES) | st.tuples(VALUES, NAMES, VALUES)


def require_tame(parse: Callable[[], np.dtype]) -> None:
    """Get a dtype that may be read, or an error of this package; and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            dtype = parse()
        except (FrameFormatError, UnsupportedFrameError):
            return
    assert not dtype.hasobject
    # no array has a dtype of arrays: their axes become axes of the array
    assert parse_dtype(format_dtype(dtype.base)) == dtype.base


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@example(["{{}}"])
@example(["{[]: 1}"])
def test_texts_of_pieces(pieces: list[str]) -> None:
    text = "".join(pieces)
    for form in (
        text,
        f"[{text}]",
        f"[({text})]",
        f"({text})",
        f"('<i4',{text})",
        f"dtype([{text}])",
    ):
        require_tame(lambda form=form: parse_dtype(form.encode("utf-8", "replace")))


@given(st.binary(max_size=40))
def test_any_bytes(raw: bytes) -> None:
    require_tame(lambda: parse_dtype(raw))
    require_tame(lambda: parse_dtype(b"[" + raw + b"]"))


@examples(25)
@given(st.lists(FIELDS, max_size=4))
@example([("", "<i4", "")])
@example([("a", "<i4", (2, [3]))])
def test_descriptions_of_fields(fields: list[tuple]) -> None:
    require_tame(lambda: parse_dtype(repr(fields).encode("utf-8", "replace")))
    require_tame(lambda: dtype_of_descr(fields))
    require_tame(lambda: dtype_of_descr([list(field) for field in fields]))


@pytest.mark.parametrize("text", ["[{{}}]", "[{[]: 1}]", "[('a', {{}})]", "[('a', '\\d')]"])
def test_a_frame_with_such_a_dtype_is_refused_by_name(
    text: str, fresh_path: Callable[[], Path]
) -> None:
    path = fresh_path()
    honest = "[('abcdefgh', '<i4')]"
    blosc2.zeros((4,), dtype=np.dtype([("abcdefgh", "<i4")]), urlpath=str(path))
    raw = path.read_bytes()
    assert raw.count(honest.encode()) == 1
    path.write_bytes(raw.replace(honest.encode(), text.ljust(len(honest)).encode()))
    with pytest.raises(FrameFormatError, match="is not the description of a dtype") as caught:
        open_b2nd(path)
    assert str(path) in str(caught.value)


def test_metadata_of_a_field_is_not_written(tmp_path: Path) -> None:
    # h5py marks texts of a compound dataset so
    text = np.dtype("S2", metadata={"h5py_encoding": "ascii"})
    given = np.ones(2, [("a", "i2"), ("b", text), ("c", [("d", text, (2,))])])
    path = tmp_path / "fields.b2nd"
    to_b2nd(given, path, vlmeta={"same": given})
    found = open_b2nd(path)
    assert found[...].tobytes() == given.tobytes()
    assert found.vlmeta["same"].dtype == found.dtype == given.dtype
    assert blosc2.open(str(path))[...].tobytes() == given.tobytes()


def test_dtypes_that_could_not_be_read_are_refused_before_a_frame_is_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kept.b2nd"
    to_b2nd(np.arange(3), path)
    deep: object = "i4"
    for _ in range(20):
        deep = [("n", deep)]
    for dtype in (deep, [("a", f"S{1 << 26}"), ("b", "i4")]):
        with pytest.raises(UnsupportedFrameError, match="a frame cannot hold the dtype"):
            to_b2nd(np.zeros(1, dtype), path, mode="w")
    assert open_b2nd(path)[...].tolist() == [0, 1, 2]


def test_padding_between_fields_is_no_field(tmp_path: Path) -> None:
    inner = np.dtype([("c", "u1"), ("d", "f4")], align=True)
    dtype = np.dtype([("a", "i1"), ("b", "f8"), ("e", inner, (2,)), ("g", "i2")], align=True)
    given, path = np.ones(3, dtype), tmp_path / "aligned.b2nd"
    to_b2nd(given, path)
    to_b2nd(given, path, mode="a", append_axis=0)
    found = open_b2nd(path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[...], np.ones(6, dtype))
    assert blosc2.open(str(path))["b"][:3].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype",
    [
        # python-blosc2 could not read padding beside a field of this name
        np.dtype([("f1", "i1"), ("b", "f8")], align=True),
        # it would be read as padding
        np.dtype({"names": ["", "a"], "formats": ["V3", "i4"]}),
        np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]}),
    ],
)
def test_dtypes_without_a_text_of_their_own(dtype: np.dtype) -> None:
    with pytest.raises(UnsupportedFrameError, match="a frame cannot hold the dtype"):
        format_dtype(dtype)
