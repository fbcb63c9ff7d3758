"""Select the vectors of this folder: ``python -m tests.data.select_vectors FOLDER_OF_FULL_SET``.

Kept are all damaged files, at least one file of every kind, producer, codec with filters, dtype and
family of shapes, and then as many more, smallest first, as the budget allows. Files whose licence
asks for more than its notice are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.vectors import ARCHIVE, DATA, simplified

LICENCE = "BSD-3-Clause"
BUDGET = 5_200_000
LARGEST = 128_000
FILE_SYSTEM_BLOCK = 4096

Row = Mapping[str, Any]


def allocated(path: Path) -> int:
    """Count the bytes that a file or a folder takes on a disk."""
    if path.is_dir():
        return FILE_SYSTEM_BLOCK + sum(allocated(member) for member in path.iterdir())
    return -(-path.stat().st_size // FILE_SYSTEM_BLOCK) * FILE_SYSTEM_BLOCK


def family(row: Row) -> str:
    """Give the first telling word of a file's name: "resized" for "pb210_2d_resized_sparse"."""
    words = re.findall(r"[a-zA-Z]+", re.sub(r"^(cat|pb)\d+d?_|\d+d_", "", Path(row["file"]).stem))
    return words[0] if words else ""


def features(row: Row) -> set[tuple[str, ...]]:
    """Give the traits of a row of which the selection must hold one example each."""
    group, shape = row["file"].split("/")[0], row.get("shape", ())
    single = {
        (trait, str(row.get(trait)))
        for trait in ("kind", "dtype", "itemsize", "array_metalayer", "expect")
    }
    return single | {
        ("producer", row["producer"], row["kind"]),
        ("fields", str(row.get("metalayer_fields")), row["producer"]),
        ("codec and filters", str(row.get("codec")), str(row.get("filters"))),
        ("shape", group, str(len(shape)), str(0 in shape)),
        ("metadata", group, str("meta" in row), str("vlmeta" in row)),
        ("family", family(row)),
        *(
            ("constant", word)
            for word in re.findall(r"special/((?:full|nans|zeros)_.*)", row["file"])
        ),
    }


def wanted(row: Row) -> bool:
    """Tell whether a row is kept whatever else is: not a sound array, or one with metadata."""
    sound = row["expect"] == "read" and not row["file"].startswith("hostile/")
    return row["expect"] != "chunk" and (not sound or "meta" in row or "vlmeta" in row)


def select(rows: Iterable[Row], root: Path) -> list[Row]:
    """Choose rows by the rules above, in the order of the full set."""
    size = {row["file"]: allocated(root / row["file"]) for row in rows}
    free = [row for row in rows if row.get("source", {}).get("licence", LICENCE) == LICENCE]
    fitting = sorted(
        (row for row in free if size[row["file"]] <= LARGEST), key=lambda row: size[row["file"]]
    )
    chosen = {row["file"] for row in fitting if wanted(row)}
    seen: set[tuple[str, ...]] = set()
    for row in fitting:
        if not features(row) <= seen:
            seen |= features(row)
            chosen.add(row["file"])
    used = sum(size[name] for name in chosen)
    for row in fitting:
        if row["file"] not in chosen and used + size[row["file"]] <= BUDGET:
            used += size[row["file"]]
            chosen.add(row["file"])
    return [row for row in free if row["file"] in chosen]


def copy(rows: Iterable[Row], root: Path, target: Path) -> None:
    """Copy the files of the rows, without the permissions that the full set may have."""
    for row in rows:
        found = root / row["file"]
        for member in [found, *found.rglob("*")]:
            copied = target / member.relative_to(root)
            if member.is_dir():
                copied.mkdir(parents=True)
            else:
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(member, copied)


def write_contents(rows: Iterable[Row], root: Path, target: Path) -> None:
    """Write the expected contents of the rows, once for all rows that share them."""
    names = {row["contents"] for row in rows if "contents" in row}
    arrays = {name: np.load(root / name) for name in sorted(names)}
    np.savez_compressed(target / ARCHIVE, **arrays)


def main() -> None:
    """Replace the vectors in this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("full", type=Path, help="folder of the full set, with its MANIFEST.json")
    root = parser.parse_args().full
    manifest = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))
    rows = select([simplified(row, root) for row in manifest], root)
    for group in {row["file"].split("/")[0] for row in manifest}:
        shutil.rmtree(DATA / group, ignore_errors=True)
    copy(rows, root, DATA)
    write_contents(rows, root, DATA)
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    (DATA / "MANIFEST.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
