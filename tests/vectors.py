"""The test vectors: real and damaged frames, with the expected result of a read.

`tests/data` has a selection that suffices for all tests. The full set is used instead if the
environment variable ``B2ND_VECTORS`` names its folder, or if ``../shared/vectors`` beside the
repository has it.
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
    """The SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def raw(array: np.ndarray) -> bytes:
    """The bytes of an array in C order, including the padding of structured elements.

    NumPy copies structured elements field by field, without padding, so the elements are viewed as
    opaque before the copy.
    """
    if not array.dtype.itemsize:
        return b""
    return array.view(f"V{array.dtype.itemsize}").tobytes()


def packed_digest(value: Any) -> str:
    """The digest of a metadata value, equal for a tuple and a list of the same elements."""
    return digest(msgpack.packb(value))


def same(got: Any, want: Any) -> bool:
    """Whether two results of indexing are equal: shape, type and all bytes.

    The bytes of a scalar differ from those in the array: it has native byte order, and NumPy strips
    zeros from the end of a string.
    """
    if isinstance(want, np.ndarray):
        alike = isinstance(got, np.ndarray) and (got.shape, got.dtype) == (want.shape, want.dtype)
        return alike and raw(got) == raw(want)
    return type(got) is type(want) and np.asarray(got).tobytes() == np.asarray(want).tobytes()


@dataclass(frozen=True)
class Row:
    """One vector. `shape`, `chunks` and `blocks` are None if the row lacks them."""

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
    """Whether python-blosc2 reads this file correctly."""
    stores_dtype: bool

    @property
    def path(self) -> Path:
        return self.root / self.file

    @property
    def any_values(self) -> bool:
        return "any values" in self.also_ok

    def array(self) -> np.ndarray | None:
        """Load the contents; None if only their digest is stored."""
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
    """Reduce a row of the full set to the fields for tests; return a reduced row unchanged."""
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
    """Load all rows of a folder of vectors, by default of the fullest one."""
    root = root or source()
    manifest = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))
    return tuple(_row(simplified(row, root), root) for row in manifest)


def rows(*expect: str) -> list[Row]:
    """The rows with one of these expectations ("read", "error", "undetectable", "chunk")."""
    return [row for row in load() if row.expect in expect]
