"""`Labels`: what an array is called, and what its axes and elements are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Bytes of all coordinates together that a frame of one array may hold in itself.
MAX_COORDS_NBYTES = 16 << 20
#: Characters of a name of a dim, a variable or an attribute.
MAX_NAME_LENGTH = 4096

#: Entries of vlmeta.
DIMS, NAME, IS_COORD, COORD_NAME, ATTRS, TYPED_ATTRS, COORDS = (
    "dims",
    "var",
    "is_coord",
    "coord_name",
    "attrs",
    "b2nd.attrs",
    "coords",
)
#: Attributes that are entries of their own, where they are text.
OWN_ATTRS = ("units", "long_name")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one array.

    Parameters
    ----------
    dims : tuple of str
        One for each axis.
    name : str, optional
        Of the variable; None for an array without one.
    is_coord : bool
        Whether it is a coordinate, rather than data.
    attrs : mapping of str to object
        Attributes as Python and NumPy values.
    coords : mapping of str to bytes
        Coordinates that the frame holds in itself: for each a contiguous frame with its own labels.

    Examples
    --------
    >>> Labels(("time", "lat"), "t2m", attrs={"units": "K"}).dims
    ('time', 'lat')
    """

    dims: tuple[str, ...]
    name: str | None = None
    is_coord: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    coords: Mapping[str, bytes] = field(default_factory=dict)
