"""Numbers of bytes for people."""

_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def decimal(nbytes: int) -> str:
    """Show a number of bytes in units of 1000, with one decimal.

    Examples
    --------
    >>> decimal(1), decimal(999), decimal(12_345), decimal(933_120_000)
    ('1 byte', '999 bytes', '12.3 kB', '933.1 MB')
    """
    if nbytes < 1000:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    value, units = nbytes / 1000, list(_UNITS)
    # what would be rounded to 1,000.0 is one of the next unit
    while round(value, 1) >= 1000 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:,.1f} {units[0]}"
