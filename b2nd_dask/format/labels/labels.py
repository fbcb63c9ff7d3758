"""`Labels`: what an array is called, and what its axes and elements are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Bytes of all coordinates together that a frame of one array may hold in itself.
MAX_COORDS_NBYTES = 16 << 20
#: Coordinates of such a frame: the time that xarray takes for their indexes grows with the square.
MAX_COORDS = 1000
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

#: Attributes by which CF says what packed elements stand for.
SCALING = ("scale_factor", "add_offset")
MISSING = ("_FillValue", "missing_value")
PACKING = (*SCALING, *MISSING, "_Unsigned")


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


def too_many_coords(nbytes: Mapping[str, int]) -> str | None:
    """Why a frame cannot hold coordinates of so many bytes each; None where it can."""
    if len(nbytes) > MAX_COORDS:
        return f"{len(nbytes)} coordinates; the most is {MAX_COORDS} in a frame"
    total = sum(nbytes.values())
    if total > MAX_COORDS_NBYTES:
        largest = max(nbytes, key=lambda name: nbytes[name])
        return (
            f"{total} bytes of coordinates, of which {largest!r} has {nbytes[largest]}; "
            f"the most is {MAX_COORDS_NBYTES} in a frame"
        )
    return None
