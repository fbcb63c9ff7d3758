"""Files inside a ZIP archive that lie there as they are, at an offset."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A local file header: its magic, and the lengths of the name and the extra field behind it.
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"

#: What `zipfile` raises for a list of files that makes no sense: a version to come, names that are
#: no text (ValueError), fields that are cut off or too large.
_NO_DIRECTORY = (
    zipfile.BadZipFile,
    NotImplementedError,
    ValueError,
    OverflowError,
    struct.error,
)


class StoredMember(NamedTuple):
    """A file of an archive that is not compressed."""

    name: str
    offset: int
    """Where its bytes begin in the archive."""


def stored_members(path: str | os.PathLike[str]) -> Iterator[StoredMember]:
    """List the uncompressed files of a ZIP archive; nothing where it is none, or a damaged one.

    Parameters
    ----------
    path : str or os.PathLike
        A local file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (FileNotFoundError, *_NO_DIRECTORY):
        return
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for entry in entries:
            # is_dir() of older Pythons fails for a name without a letter
            if entry.compress_type != zipfile.ZIP_STORED or entry.filename.endswith("/"):
                continue
            # a directory with a wrong offset of its own shifts all of them
            if not 0 <= entry.header_offset < size:
                continue
            file.seek(entry.header_offset)
            head = file.read(_LOCAL.size)
            if len(head) == _LOCAL.size and head.startswith(_LOCAL_MAGIC):
                _, name, extra = _LOCAL.unpack(head)
                yield StoredMember(entry.filename, entry.header_offset + len(head) + name + extra)
