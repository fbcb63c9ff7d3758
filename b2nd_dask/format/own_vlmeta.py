"""The entries of vlmeta that belong to the frame itself, and not to the user.

python-blosc2 lists them with the user's, and whoever copies all entries into another frame copies
them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

#: The record of checksums (docs/integrity.md, Record).
RECORD_NAME = "b2nd.xxh3"
#: The statistics of the chunks (docs/statistics.md, Entry).
STATISTICS_NAME = "b2nd.stats"
OWN_NAMES = (RECORD_NAME, STATISTICS_NAME)

_Value = TypeVar("_Value")


def users_vlmeta(vlmeta: Mapping[str, _Value]) -> dict[str, _Value]:
    """Leave the frame's own entries out of vlmeta."""
    return {name: value for name, value in vlmeta.items() if name not in OWN_NAMES}
