"""Data sets on disk: made if missing or damaged, and reused by later runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import xxhash

from benchmarks.model import Dataset

MANIFEST = "manifest.json"


def ensure(dataset: Dataset, root: Path) -> Path:
    """Make a data set unless it exists; return its path.

    The check of an existing one reads all of it into the page cache.
    """
    recipe = json.loads(json.dumps(dict(dataset.recipe)))
    key = xxhash.xxh3_64_hexdigest(json.dumps(recipe, sort_keys=True).encode())
    folder = root / f"{dataset.name}-{key}"
    if not _is_intact(folder, recipe):
        _build(dataset, folder)
        manifest = {"recipe": recipe, "digests": _digests(folder)}
        # written last: an interrupted build has no manifest
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return folder / dataset.filename


def _build(dataset: Dataset, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    dataset.build(folder / dataset.filename)


def _is_intact(folder: Path, recipe: object) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    expected = {"recipe": recipe, "digests": _digests(folder)}
    return bool(manifest == expected)


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): _digest(path)
        for path in files
        if path.name != MANIFEST or path.parent != folder
    }


def _digest(path: Path) -> str:
    """The digest of a file, read in steps: some have many gigabytes."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            digest.update(piece)
    return str(digest.hexdigest())
