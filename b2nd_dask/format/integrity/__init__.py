"""Checksums of a frame, as docs/integrity.md describes them.

`record` holds the digests of the chunks and of the metadata. `state` writes the stamp, six bytes of
the index chunk that say that no other software has changed a chunk since, and judges both when a
frame is opened. Import from here; other modules of `format` import nothing of it.
"""

from b2nd_dask.format.integrity.record import (
    chunk_digest,
    digest_column,
    has_room,
    is_record,
    require_digest,
    require_digest_of,
)
from b2nd_dask.format.integrity.state import (
    ChecksumState,
    Integrity,
    build_stamped_tail,
    parse_integrity,
    record_digest,
)

__all__ = [
    "ChecksumState",
    "Integrity",
    "build_stamped_tail",
    "chunk_digest",
    "digest_column",
    "has_room",
    "is_record",
    "parse_integrity",
    "record_digest",
    "require_digest",
    "require_digest_of",
]
