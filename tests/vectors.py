"""The test vectors: real and damaged frames, with what each must read as.

`tests/data` holds a selection that makes the tests complete. Where the environment variable
``B2ND_VECTORS`` names a folder with the full set, or ``../shared/vectors`` beside the repository
holds it, that one is used instead.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent / "data"
ARCHIVE = "contents.npz"
SIBLING = Path(__file__).parents[2] / "shared" / "vectors"

# What the rows of the full set get wrong: a note that allows what `also_ok` does not list, and a
# dtype that is neither the one in the file nor the one of the expected contents.
CORRECTIONS = {
    "hostile/h_special_low_bits.b2nd": {"also_ok": ["error"]},
    "oldb2nd/derived6_1d_struct.b2nd": {"dtype": "[('a', '<i4'), ('b', '<f8')]"},
}

KEPT = (
    *("file", "expect", "scope", "damage", "kind", "producer", "source"),
    *("shape", "chunks", "blocks", "dtype", "itemsize", "codec", "filters"),
    *("array_metalayer", "metalayer_fields"),
)


def digest(data: bytes) -> str:
    """Give the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def raw(array: np.ndarray) -> bytes:
    """Give the bytes of an array in C order, the padding of structured elements included.

    NumPy copies structured elements field by field and leaves out what lies between the fields, so
    the elements are taken as opaque before anything is copied.
    """
    if not array.dtype.itemsize:
        return b""
    return array.view(f"V{array.dtype.itemsize}").tobytes()


def packed_digest(value: Any) -> str:
    """Give the digest of a metadata value, equal for a tuple and a list of the same elements."""
    return digest(msgpack.packb(value))


def same(got: Any, want: Any) -> bool:
    """Tell whether two results of indexing are alike: shape, type and every byte.

    A scalar is not what its bytes in the array are: it is of native byte order, and NumPy strips
    the zeros from the end of a string.
    """
    if isinstance(want, np.ndarray):
        alike = isinstance(got, np.ndarray) and (got.shape, got.dtype) == (want.shape, want.dtype)
        return alike and raw(got) == raw(want)
    return type(got) is type(want) and np.asarray(got).tobytes() == np.asarray(want).tobytes()


@dataclass(frozen=True)
class Row:
    """One vector. `shape`, `chunks` and `blocks` are None where the row does not say."""

    file: str
    root: Path
    expect: str
    also_ok: tuple[str, ...]
    scope: str | None
    producer: str
    shape: tuple[int, ...] | None
    chunks: tuple[int, ...] | None
    blocks: tuple[int, ...] | None
    dtype: np.dtype | None
    filters: tuple[str, ...]
    sha256: str | None
    """Digest of the contents in C order; for a damaged file, those of the undamaged one."""
    contents: str | None
    vlmeta: Mapping[str, str] | None
    """Digest of each packed value, by name."""
    meta: Mapping[str, str] | None
    upstream_reads: bool
    """Whether python-blosc2 reads this file, and rightly."""
    stores_dtype: bool

    @property
    def path(self) -> Path:
        return self.root / self.file

    @property
    def any_values(self) -> bool:
        return "any values" in self.also_ok

    def array(self) -> np.ndarray | None:
        """Load the contents; None where only their digest is kept."""
        if self.contents is None:
            return None
        if (self.root / self.contents).exists():
            return np.load(self.root / self.contents)
        return _archive(self.root)[self.contents]


@cache
def _archive(root: Path) -> Mapping[str, np.ndarray]:
    with np.load(root / ARCHIVE) as archive:
        return dict(archive)


def simplified(row: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Reduce a row of the full set to what tests use; a row that was reduced already is kept."""
    if "upstream_reads" in row:
        return dict(row)
    row = {**row, **CORRECTIONS.get(row["file"], {})}
    contents = row.get("base_expected") or row["expected"]
    small = {name: row[name] for name in KEPT if row.get(name) is not None}
    small["also_ok"] = row.get("also_ok") or []
    small["upstream_reads"] = row["today"] == "reads the right values"
    if contents and contents.startswith("sha256:"):
        small["sha256"] = contents.removeprefix("sha256:")
    elif contents:
        small["sha256"] = digest(raw(np.load(root / contents)))
        small["contents"] = contents
    for name in ("vlmeta", "meta"):
        if values := row.get(f"{name}_expected"):
            small[name] = _value_digests(values, root)
    return small


def _value_digests(values: str | Mapping[str, str], root: Path) -> dict[str, str]:
    if isinstance(values, str):
        unpacked = msgpack.unpackb((root / values).read_bytes(), strict_map_key=False)
        return {name: packed_digest(value) for name, value in unpacked.items()}
    return {name: value.removeprefix("sha256:") for name, value in values.items()}


def _dtype(row: Mapping[str, Any]) -> np.dtype | None:
    if text := row.get("dtype"):
        return np.dtype(ast.literal_eval(text) if text.startswith("[") else text)
    return np.dtype(f"V{row['itemsize']}") if row.get("itemsize") else None


def _row(row: Mapping[str, Any], root: Path) -> Row:
    lengths = {
        name: None if row.get(name) is None else tuple(row[name])
        for name in ("shape", "chunks", "blocks")
    }
    filters = row.get("filters") or []
    return Row(
        file=row["file"],
        root=root,
        expect=row["expect"],
        also_ok=tuple(row["also_ok"]),
        scope=row.get("scope"),
        producer=row["producer"],
        dtype=_dtype(row),
        filters=tuple([filters] if isinstance(filters, str) else filters),
        sha256=row.get("sha256"),
        contents=row.get("contents"),
        vlmeta=row.get("vlmeta"),
        meta=row.get("meta"),
        upstream_reads=row["upstream_reads"],
        stores_dtype=row.get("itemsize") is None,
        **lengths,
    )


def source() -> Path:
    """Find the folder of vectors to use."""
    if named := os.environ.get("B2ND_VECTORS"):
        return Path(named)
    return SIBLING if (SIBLING / "MANIFEST.json").exists() else DATA


@cache
def load(root: Path | None = None) -> tuple[Row, ...]:
    """Load all rows of a folder of vectors, by default of the fullest one there is."""
    root = root or source()
    manifest = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))
    return tuple(_row(simplified(row, root), root) for row in manifest)


def rows(*expect: str) -> list[Row]:
    """Give the rows with one of these expectations ("read", "error", "undetectable", "chunk")."""
    return [row for row in load() if row.expect in expect]
