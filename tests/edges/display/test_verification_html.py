"""The page of a verification says at once whether a frame is whole, and what is not."""

from __future__ import annotations

from pathlib import Path

import blosc2
import numpy as np
import pytest

from b2nd_dask import Verification, open_b2nd, to_b2nd, verify
from b2nd_dask.errors import ChecksumError
from b2nd_dask.format.integrity import ChecksumState
from tests.edges.display.pages import Page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    to_b2nd(np.random.default_rng(0).normal(size=4000), tmp_path / "x.b2nd", chunks=1000)
    return tmp_path / "x.b2nd"


def test_whole(path: Path) -> None:
    page = Page(verify(path)._repr_html_())
    assert "verified: as it was written" in page.text
    assert page.table["stored chunks"] == ["4 read and compared"]
    assert page.table["damaged"] == ["0"]


def test_results_and_chunks_have_colours_for_pages_that_follow_the_system(path: Path) -> None:
    for shown in (verify(path), open_b2nd(path)):
        style = shown._repr_html_()
        assert ".b2nd-good{color:light-dark(#00724c,#3ecf9b)}" in style
        assert ".b2nd-stored{fill:light-dark(#0072b2,#3d9bd9);" in style


def test_damaged(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    found = verify(path)
    (error,) = found.bad
    page = Page(found._repr_html_())
    assert "damaged" in page.text
    assert "verified" not in page.text
    assert page.table[str(error.chunk)] == ["ChecksumError", str(error)]


def test_no_checksums(tmp_path: Path) -> None:
    blosc2.asarray(np.arange(10.0), urlpath=str(tmp_path / "x.b2nd"))
    page = Page(verify(tmp_path / "x.b2nd")._repr_html_())
    assert "no valid checksums" in page.text
    assert "seal" in page.table["to do"][0]


def test_very_many_damaged_chunks() -> None:
    bad = tuple(ChecksumError("<b>", path="x", chunk=n) for n in range(10_000))
    found = Verification("x", ChecksumState.VALID, "", 10_000, bad)
    html = found._repr_html_()
    assert len(html) < 40_000
    assert "and 9,900 more" in html
    assert "<b>" not in html.replace("<b>Verification</b>", "")


def test_damaged_statistics() -> None:
    found = Verification("x", ChecksumState.VALID, "", 4, (), bad_statistics="not readable")
    page = Page(found._repr_html_())
    assert "\u2717 damaged" in page.text
    assert "no valid checksums" not in page.text
    assert page.table["statistics"] == ["damaged: not readable; add_stats writes them again"]
