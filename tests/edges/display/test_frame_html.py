"""The page of a frame says what the frame's attributes say, and never raises."""

from __future__ import annotations

import re
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import open_b2nd, to_b2nd, verify
from b2nd_dask.edges.display import pages
from b2nd_dask.edges.display.pages import MOST_FETCHED, preview
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.chunk_table import chunk_table, superseded_in
from b2nd_dask.frame.info import decimal
from b2nd_dask.frame.reference import FrameReference
from tests.counting import bytes_read
from tests.edges.display.pages import Page

HOSTILE = "<script>alert(1)</script>\"'&</td></table><img src=x onerror=alert(2)>"


@pytest.fixture
def values() -> np.ndarray:
    found = np.random.default_rng(3).normal(size=(40, 60))
    found[:10] = 0
    found[10:20, :30] = np.nan
    found[10:20, 30:45] = 7.5
    found[30:] = np.arange(600).reshape(10, 60)
    return found


@pytest.fixture
def path(tmp_path: Path, values: np.ndarray) -> Path:
    target = tmp_path / "x.b2nd"
    to_b2nd(
        values, target, chunks=(10, 15), blocks=(5, 15), vlmeta={"units": "K", "dims": ["y", "x"]}
    )
    return target


def page(shown: object) -> Page:
    return Page(shown._repr_html_())


def test_the_table_has_the_attributes(path: Path) -> None:
    frame = open_b2nd(path)
    table = page(frame).table
    assert table["shape"] == [str(frame.shape), str(frame.chunks), str(frame.blocks)]
    assert table["bytes"] == [decimal(frame.nbytes), decimal(10 * 15 * 8), decimal(5 * 15 * 8)]
    assert table["count"] == ["", str(frame.nchunks), "2 per chunk"]
    assert table["size"] == [frame.info["size"]]
    assert table["dims"] == ["y, x"]
    assert table["dtype"] == ["float64"]
    assert table["codec"] == ["zstd, level 1"]
    assert table["filters"] == ["shuffle"]
    assert table["layout"] == ["contiguous"]
    assert table["checksums"][0].startswith("present")
    assert table["units"] == ["'K'"]
    array = blosc2.open(str(path))
    special = [info.special.name != "NOT_SPECIAL" for info in array.schunk.iterchunks_info()]
    stored = sorted(len(array.schunk.get_chunk(n)) for n in range(16) if not special[n])
    text = table["chunk sizes"][0]
    low, median, high = map(decimal, (stored[0], stored[(len(stored) - 1) // 2], stored[-1]))
    assert text == f"{low} to {high}, median {median}"


def test_the_legend_counts_the_kinds(path: Path) -> None:
    text = page(open_b2nd(path)).text
    for legend in ("stored 9 (56.2 %)", "zeros 4 (25 %)", "NaN 2 (12.5 %)", "one value 1 (6.25 %)"):
        assert legend in text


def test_superseded_space_is_what_compact_gives_back(path: Path) -> None:
    assert "superseded" not in page(open_b2nd(path)).table
    to_b2nd(np.ones((10, 15)) * np.arange(15), path, mode="r+", region=(slice(20, 30), slice(15)))
    frame = open_b2nd(path)
    text = page(frame).table["superseded"][0]
    assert text == frame.info["superseded"]
    reference = reference_of(frame)
    expected = superseded_in(reference, chunk_table(reference))
    assert text.startswith(decimal(expected))
    # metadata take another few bytes
    assert b2nd_dask.compact(path) == pytest.approx(expected, abs=300)
    assert "superseded" not in open_b2nd(path).info


def test_preview_equals_the_array(path: Path, values: np.ndarray) -> None:
    lines = [line.split() for line in preview(open_b2nd(path)).splitlines()]
    assert lines[3] == ["\u2026"] * 7
    shown = np.array([row[:3] + row[4:] for row in lines[:3] + lines[4:]], float)
    index = np.r_[:3, -3:0]
    np.testing.assert_allclose(shown, values[np.ix_(index, index)], rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (2, 9), (3, 4, 5), (0, 4), (2, 1, 8, 8)])
def test_preview_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    elements = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    frame = open_b2nd(blosc2.asarray(elements))
    text = preview(frame)
    assert page(frame).table["shape"][0] == str(shape)
    if not elements.size:
        assert text == "no elements"
        return
    plane = elements.reshape(-1, *elements.shape[-2:])[0] if elements.ndim > 2 else elements
    expected = [
        axis if (length := n) <= 7 else np.r_[:3, length - 3 : length]
        for n in plane.shape
        for axis in [np.arange(n)]
    ]
    found = text.splitlines()[1 if elements.ndim > 2 else 0 :]
    numbers = [int(word) for line in found for word in line.split() if word != "\u2026"]
    np.testing.assert_array_equal(numbers, plane[np.ix_(*expected)].reshape(-1) if shape else [0])


def test_texts_of_elements_are_escaped(tmp_path: Path) -> None:
    to_b2nd(np.array(["<b>bold</b>", "\x1b[31m"]), tmp_path / "t.b2nd")
    html = open_b2nd(tmp_path / "t.b2nd")._repr_html_()
    assert "<b>bold" not in html
    assert "\x1b" not in html
    assert "&lt;b&gt;bold" in html


def test_hostile_texts_are_escaped(tmp_path: Path, values: np.ndarray) -> None:
    target = tmp_path / "<img src=x>.b2nd"
    entries = {
        "<i>name</i>": 1,
        "text": HOSTILE,
        "dims": ["<svg onload=x>", HOSTILE],
        "u": "\u202e\x1b[0m",
    }
    to_b2nd(values, target, chunks=(10, 15), vlmeta=entries, meta={"m<": [HOSTILE]})
    frame = open_b2nd(target)
    for shown in (frame, frame.attrs, frame.meta, frame.info, verify(target)):
        found = page(shown)
        names = {tag for tag, _ in found.tags}
        assert not names & {"script", "img", "i", "iframe", "a", "link"} - {"i"}
        assert all(a.get("class", "").startswith("b2nd") for tag, a in found.tags if tag == "i")
        assert not any(key.startswith("on") for _, attrs in found.tags for key in attrs)
        assert not any(key in ("src", "href") for _, attrs in found.tags for key in attrs)
        assert "\x1b" not in found.text
        assert "\u202e" not in found.text
    assert page(frame.attrs).table["text"] == [repr(HOSTILE)]


def test_pages_load_nothing(path: Path) -> None:
    html = open_b2nd(path)._repr_html_()
    for word in ("http", "url(", "@import", "<script", "javascript"):
        assert word not in html


def test_huge_attributes_are_bounded(tmp_path: Path) -> None:
    entries = {"long": "x" * 50_000, "array": np.arange(300_000.0), "list": list(range(10_000))}
    entries |= {f"n{number}": number for number in range(8)}
    to_b2nd(np.arange(10), tmp_path / "a.b2nd", vlmeta=entries)
    frame = open_b2nd(tmp_path / "a.b2nd")
    assert len(frame._repr_html_()) < 20_000
    table = page(frame).table
    assert table["array"] == [f"({decimal(frame.attrs.nbytes_of('array'))}, not shown)"]
    assert len(table["long"][0]) <= 602
    details = [attrs for tag, attrs in page(frame).tags if tag == "details"]
    # values are open, many attributes are not
    assert ["open" in attrs for attrs in details] == [True, False]


def test_a_million_chunks_are_a_small_page(tmp_path: Path) -> None:
    array = blosc2.zeros(
        (8000, 8000), dtype="u1", chunks=(8, 8), blocks=(8, 8), urlpath=str(tmp_path / "z.b2nd")
    )
    array[:8, :80] = 1
    frame = open_b2nd(tmp_path / "z.b2nd")
    assert frame.nchunks == 1_000_000
    html = frame._repr_html_()
    assert len(html) < 60_000
    found = Page(html)
    assert "a cell: up to 25 x 16 chunks" in found.text
    assert "several kinds" in found.text


def test_a_preview_reads_little(tmp_path: Path) -> None:
    elements = np.random.default_rng(0).normal(size=(2000, 2000))
    to_b2nd(elements, tmp_path / "x.b2nd", chunks=(1000, 1000), blocks=(10, 1000))
    frame = open_b2nd(tmp_path / "x.b2nd")
    nbytes, html = bytes_read(frame._repr_html_)
    assert 0 < nbytes < MOST_FETCHED
    assert f"{elements[0, 0]:.6g}" in html


def test_chunks_of_one_large_block_are_not_read(tmp_path: Path) -> None:
    elements = np.random.default_rng(0).normal(size=(1200, 1200))
    to_b2nd(elements, tmp_path / "x.b2nd", chunks=(1200, 1200), blocks=(1200, 1200))
    frame = open_b2nd(tmp_path / "x.b2nd")
    nbytes, html = bytes_read(frame._repr_html_)
    assert nbytes < 10_000
    assert re.search("not read, since [0-9,]+ bytes would have to be decoded", html)


def test_no_chunk_of_a_store_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/look/x.b2nd", path.read_bytes())
    frame = open_b2nd("memory://look/x.b2nd")
    monkeypatch.setattr(FrameReference, "reading", lambda self: pytest.fail("a chunk is read"))
    found = page(frame)
    assert "not read, since the frame is in a store" in found.text
    # up to the next chunk, which is all that the index says
    assert found.table["chunk sizes"][0].endswith("at most")
    assert "stored 10" in found.text


def test_constant_frames_of_a_store_show_their_values(tmp_path: Path) -> None:
    to_b2nd(np.zeros((9, 9)), tmp_path / "z.b2nd", chunks=(3, 3))
    fsspec.filesystem("memory").pipe("/look/z.b2nd", (tmp_path / "z.b2nd").read_bytes())
    assert preview(open_b2nd("memory://look/z.b2nd")).split()[0] == "0"


def test_sparse_frames(tmp_path: Path, values: np.ndarray) -> None:
    to_b2nd(values, tmp_path / "s.b2nd", chunks=(10, 15), contiguous=False)
    found = page(open_b2nd(tmp_path / "s.b2nd"))
    assert found.table["layout"] == ["sparse, 10 files of chunks"]
    assert "one value 1" in found.text
    next((tmp_path / "s.b2nd").glob("*.chunk")).write_bytes(b"")
    assert "stored" in page(open_b2nd(tmp_path / "s.b2nd", verify=False)).text


def test_closed_frames(path: Path) -> None:
    frame = open_b2nd(path)
    frame.close()
    found = page(frame)
    assert "(closed)" in found.text
    assert found.table["shape"] == ["(40, 60)"]


def test_frames_that_are_gone_or_changed(path: Path) -> None:
    frame = open_b2nd(path)
    to_b2nd(np.ones((40, 60)), path, mode="w", chunks=(20, 20))
    changed = page(frame)
    assert changed.table["shape"][0] == "(40, 60)"
    assert "StaleFrameError" in changed.text
    path.unlink()
    assert "cannot be shown" in page(frame).text


@pytest.mark.parametrize("at", range(300, 4000, 370))
def test_damaged_frames(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + 8] = b"\xff" * 8
    path.write_bytes(raw)
    try:
        frame = open_b2nd(path, verify=False)
    except b2nd_dask.B2ndError:
        return
    assert page(frame).table["shape"][0] == "(40, 60)"
    assert str(frame.info)
    page(frame.attrs)
    page(verify(path))


def test_an_error_in_one_part_leaves_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_corners", lambda shape: 1 / 0)
    found = page(open_b2nd(path))
    assert "(cannot be shown: ZeroDivisionError: division by zero)" in found.text
    assert found.table["units"] == ["'K'"]


def test_plain_repr_is_still_there(path: Path) -> None:
    frame = open_b2nd(path)
    assert repr(frame).startswith("<Frame ")
    assert all(len(line) <= 80 or frame.path in line for line in str(frame.info).splitlines())


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (np.array(["2020-01-01", "NaT"], "M8[D]"), ["2020-01-01", "NaT"]),
        (
            np.array(["2020-01-01T00:00:00", "2020-01-01T00:00:00.000000001", "NaT"], "M8[ns]"),
            ["2020-01-01", "2020-01-01T00:00:00.000000001", "NaT"],
        ),
        (np.array(["2020-03", "1969-12"], "M8[M]"), ["2020-03", "1969-12"]),
        (np.array([0, 90, "NaT"], "m8[s]"), ["0 seconds", "90 seconds", "NaT"]),
        (np.array([86_400 * 10**9], "m8[ns]"), ["86400000000000 nanoseconds"]),
    ],
)
def test_times_are_readable(values: np.ndarray, texts: list[str]) -> None:
    shown = preview(open_b2nd(blosc2.asarray(values)))
    assert re.split(r"\s{2,}", shown.strip()) == texts
    if values.dtype.kind == "M":
        np.testing.assert_array_equal(np.array(texts, values.dtype), values)
