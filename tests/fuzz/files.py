"""A frame as the files it consists of, in memory and as text."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

#: Content by name; a contiguous frame is the one file "".
Files = dict[str, bytes]


def read_files(path: Path) -> Files:
    """Load a frame from the disk."""
    if path.is_dir():
        return {member.name: member.read_bytes() for member in sorted(path.iterdir())}
    return {"": path.read_bytes()}


def write_files(files: Files, path: Path) -> Path:
    """Store a frame on the disk."""
    if "" in files:
        path.write_bytes(files[""])
        return path
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def to_text(files: Files) -> str:
    """Pack a frame into one line."""
    return json.dumps(
        {
            name: base64.b85encode(zlib.compress(content, 9)).decode("ascii")
            for name, content in files.items()
        }
    )


def from_text(text: str) -> Files:
    """Unpack what `to_text` made."""
    return {
        name: zlib.decompress(base64.b85decode(packed)) for name, packed in json.loads(text).items()
    }
