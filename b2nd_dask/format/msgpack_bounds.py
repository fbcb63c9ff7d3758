"""Bounds on msgpack values, checked before any Python object is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from b2nd_dask.errors import FrameFormatError

#: Values in a metadata entry, those in containers included. A value takes a byte in the file and up
#: to a hundred in memory.
MAX_ITEMS = 1 << 20
#: A set or an array takes so many times the memory and time of a plain value.
EXTENSION_ITEMS = 16
#: Members of a set or keys of a map that may share a hash. Numbers of 64 bits cannot share one more
#: often; in CPython equal hashes make a set of n members take n * n steps.
MAX_EQUAL_HASHES = 64

_PLAIN, _COUNTED, _EXTENSION, _INVALID = range(4)


def _tables() -> tuple[list[int], list[int], list[int], list[int]]:
    """By first byte: its class, bytes of head and content, bytes of length, values that follow."""
    kinds, sizes, widths, children = [_PLAIN] * 256, [1] * 256, [0] * 256, [0] * 256
    for n in range(16):
        children[0x80 + n], children[0x90 + n] = 2 * n, n
    for n in range(32):
        sizes[0xA0 + n] = 1 + n
    kinds[0xC1] = _INVALID
    for i, width in enumerate((1, 2, 4)):
        widths[0xC4 + i] = widths[0xC7 + i] = widths[0xD9 + i] = width
        kinds[0xC7 + i] = _EXTENSION
        sizes[0xC7 + i] = 2
    for i, nbytes in enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8)):
        sizes[0xCA + i] = 1 + nbytes
    for i in range(5):
        kinds[0xD4 + i], sizes[0xD4 + i] = _EXTENSION, 2 + (1 << i)
    for i, width in enumerate((2, 4)):
        for first in (0xDC, 0xDE):
            kinds[first + i], widths[first + i] = _COUNTED, width
    return kinds, sizes, widths, children


_KINDS, _SIZES, _WIDTHS, _CHILDREN = _tables()


class ItemBudget:
    """How many more values a metadata entry may have, extension values inside it included."""

    def __init__(self) -> None:
        self._left = MAX_ITEMS

    def spend(self, raw: bytes) -> None:
        """Count the values of a msgpack value; those inside extension values are not counted.

        Raises
        ------
        FrameFormatError
            Too many values, or fewer than its arrays and maps announce. Decoders make room for as
            many as are announced.
        """
        pos, waiting, left = 0, 1, self._left
        size = len(raw)
        while waiting:
            if pos >= size:
                raise FrameFormatError("it is not a msgpack value: it ends too early")
            first = raw[pos]
            kind, width = _KINDS[first], _WIDTHS[first]
            length = int.from_bytes(raw[pos + 1 : pos + 1 + width], "big") if width else 0
            waiting -= 1
            left -= EXTENSION_ITEMS if kind == _EXTENSION else 1
            if kind == _INVALID:
                raise FrameFormatError("it is not a msgpack value: 0xc1 begins none")
            pos += _SIZES[first] + width
            if kind == _COUNTED:
                waiting += length if first < 0xDE else 2 * length
            else:
                pos += length
                waiting += _CHILDREN[first]
            if waiting > left:
                raise FrameFormatError(
                    f"it holds more than {MAX_ITEMS} values, which belong in an array; "
                    "`raw(name)` gives its bytes as they are"
                )
        if pos != size:
            raise FrameFormatError(
                f"it is not a msgpack value: it has {pos} bytes, {size} are there"
            )
        self._left = left


def require_spread(members: Sequence[object]) -> None:
    """Check that the members of a set or map were not chosen to share hashes.

    Raises
    ------
    FrameFormatError
        More than `MAX_EQUAL_HASHES` have the same hash.
    TypeError
        One has no hash.

    Examples
    --------
    >>> require_spread(range(10_000))
    """
    if len(members) <= MAX_EQUAL_HASHES:
        return
    counts = Counter(map(hash, members))
    if max(counts.values(), default=0) > MAX_EQUAL_HASHES:
        raise FrameFormatError("a set or map whose members share one hash, as in an attack")
