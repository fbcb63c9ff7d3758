"""Formats by the suffix of a name, and parts of files in names."""

from __future__ import annotations

from pathlib import PurePosixPath

#: Suffixes of each format.
FORMATS = {
    "b2nd": (".b2nd", ".caterva", ".cat2", ".cat"),
    "b2d": (".b2d",),
    "b2z": (".b2z", ".b2e"),
    "zarr": (".zarr", ".zarr.zip", ".zip", ".zr", ".zgroup"),
    "hdf5": (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4", ".cdf", ".netcdf", ".mat"),
    "npy": (".npy",),
    "npz": (".npz",),
}
#: What separates a file and a member.
MARK = "::"


def split_member(path: str, member: str | None) -> tuple[str, str | None]:
    """Split ``file.h5::/group/dataset``.

    Raises
    ------
    ValueError
        A member is given twice.

    Examples
    --------
    >>> split_member("file.h5::/group/rain", None)
    ('file.h5', '/group/rain')
    """
    before, mark, inner = path.partition(MARK)
    if not mark or not inner:
        return before, member
    if member is not None and member.strip("/") != inner.strip("/"):
        raise ValueError(f"{path}: a member is named twice, and member= is {member!r}")
    return before, inner


def format_of(path: str, given: str | None, argument: str) -> str:
    """The format of a file.

    Parameters
    ----------
    given : str, optional
        What the user says.
    argument : str
        How the user says it, for messages.

    Raises
    ------
    ValueError
        Unknown.

    Examples
    --------
    >>> format_of("https://host/x.zarr/?key=1", None, "source_format")
    'zarr'
    """
    if given is not None:
        if given not in FORMATS:
            raise ValueError(f"{argument}={given!r}: known are {', '.join(FORMATS)}")
        return given
    name = PurePosixPath(path.partition("?")[0].rstrip("/")).name.lower()
    for known, suffixes in FORMATS.items():
        if name.endswith(suffixes):
            return known
    # members of stores go on behind them
    for known in ("b2z", "b2d", "zarr"):
        if any(part.lower().endswith(FORMATS[known]) for part in path.split("/")):
            return known
    raise ValueError(f"{path}: its suffix says no format; say it: {argument}={' | '.join(FORMATS)}")
