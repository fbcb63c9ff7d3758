"""Hints that messages end with: why nothing is there, and what is there instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from b2nd_dask.storage.failures import if_pattern, what_directory, why_missing

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert why_missing(f"{tmp_path}/a/b/c.b2nd") == f": there is no folder {tmp_path}/a"


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert why_missing(f"{tmp_path}/a/b/c.b2nd") == f": {tmp_path}/a is not a folder"


def test_a_link_to_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert why_missing(f"{tmp_path}/link/c.b2nd") == ""
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert why_missing(f"{tmp_path}/dangling/c.b2nd") == f": {tmp_path}/dangling is not a folder"


@pytest.mark.parametrize("name", ["*.b2nd", "part?.b2nd", "part[0-9].b2nd", "s3://bucket/*/a"])
def test_a_name_that_looks_like_a_pattern(name: str) -> None:
    assert "if it is a pattern: from_b2nd takes" in if_pattern(name)


def test_only_stars_are_expanded_in_urls() -> None:
    hint = "in URLs only * is expanded"
    assert hint in if_pattern("s3://bucket/part?.b2nd")
    assert hint not in if_pattern("s3://bucket/part*.b2nd") + if_pattern("part?.b2nd")


@pytest.mark.parametrize("name", ["a.b2nd", "/data/a.zip[38:]", "s3://bucket/a[]", "a]b["])
def test_a_name_that_is_no_pattern(name: str) -> None:
    assert if_pattern(name) == ""


@pytest.mark.parametrize(
    ("path", "names", "guess"),
    [
        ("a.zarr", ["zarr.json", "c"], "Zarr"),
        ("a", [".zgroup", "b.b2nd"], "Zarr"),
        ("a.b2nd", ["00000000.chunk"], "the index of a sparse frame is missing"),
        ("a.b2d", [], "a dataset or a store"),
        ("a", ["embed.b2e", "b.b2nd"], "a dataset or a store"),
        ("a", ["z.b2nd", "c.b2nd", "readme"], "such as c.b2nd"),
        ("a.b2d", ["embed.b2e", "dataset.json", "c.b2nd"], "it is a dataset"),
        ("a", ["readme"], ""),
        ("a", [], ""),
    ],
)
def test_what_a_directory_probably_is(path: str, names: list[str], guess: str) -> None:
    hint = what_directory(path, names)
    assert guess in hint
    assert (hint == "") == (guess == "")
