"""The mark of a write: which write made a frame.

It lies between the index chunk and the trailer, where other software looks at nothing: that reads
the index by its own length and finds the trailer from the frame's end. Whatever changes a chunk
writes the index anew, and the trailer close behind it, so the mark goes with the state that it
marks. A frame without chunks has no index, and no mark.
"""

from __future__ import annotations

#: Bytes of a key.
KEY_NBYTES = 8
_MAGIC = b"b2ndmark"
WRITE_ID_NBYTES = len(_MAGIC) + KEY_NBYTES


def build_write_id(key: str) -> bytes:
    """Write a mark.

    Parameters
    ----------
    key : str
        The key of a write, 16 hexadecimal digits.

    Returns
    -------
    bytes

    Examples
    --------
    >>> build_write_id("41424344" * 2)
    b'b2ndmarkABCDABCD'
    """
    return _MAGIC + bytes.fromhex(key)


def parse_write_id(buf: bytes) -> str | None:
    """Read a mark.

    Parameters
    ----------
    buf : bytes
        The `WRITE_ID_NBYTES` bytes before a trailer.

    Returns
    -------
    str or None
        The key; None where there is no mark.
    """
    if len(buf) != WRITE_ID_NBYTES or not buf.startswith(_MAGIC):
        return None
    return buf[len(_MAGIC) :].hex()
