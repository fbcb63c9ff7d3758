"""Records of checksums that other software carried from one frame into another.

python-blosc2 lists the record with the user's entries of vlmeta, so that whoever copies these takes
it along. In the other frame the seal does not fit it, just as after damage.
"""

from __future__ import annotations

from typing import Any

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.array_meta import parse_array_meta
from b2nd_dask.format.values import pack_value, unpack_value

_KEYS = ["version", "array", "index", "chunks"]
_DIGEST_NBYTES = 8

#: The other frame may have more chunks than this one. Digests hardly shrink, but for chunks of the
#: same bytes.
_FREE_NBYTES = 4 << 20
_MAX_RATIO = 2


def most_nbytes(entry: bytes) -> int:
    """Most bytes that the entry of a record may unpack to, whatever frame it is of.

    Parameters
    ----------
    entry : bytes
        As stored.

    Returns
    -------
    int
    """
    return max(_FREE_NBYTES, _MAX_RATIO * len(entry))


def may_be_copied(record: bytes, index_digest: bytes, seal: bytes, expected: bytes) -> bool:
    """Whether a record that the seal does not fit may be that of another frame.

    Parameters
    ----------
    record : bytes
        The msgpack value.
    index_digest : bytes
        Of this frame's index chunk.
    seal : bytes
        What this frame's index chunk holds.
    expected : bytes
        The seal that would fit the record.

    Returns
    -------
    bool
        It is a whole record, and neither its seal nor its digest of the index is this frame's but
        for one bit. Its index may be the same nevertheless: chunks that are stored plain have the
        same places in many frames.
    """
    try:
        value: Any = unpack_value(record)
        # nothing that a writer of records would not write: a damaged one hardly passes
        if list(value) != _KEYS or pack_value(value) != record:
            return False
        if not isinstance(value["version"], int) or len(value["chunks"]) % _DIGEST_NBYTES:
            return False
        if not all(isinstance(value[key], bytes) for key in _KEYS[1:]):
            return False
        # the form alone tells which name it had
        parse_array_meta("b2nd", value["array"])
    # of values that are no map, or have no length
    except (B2ndError, ValueError, TypeError):
        return False
    if len(value["index"]) != _DIGEST_NBYTES:
        return False
    return _bits_apart(value["index"], index_digest) != 1 and _bits_apart(seal, expected) > 1


def _bits_apart(a: bytes, b: bytes) -> int:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_count()
