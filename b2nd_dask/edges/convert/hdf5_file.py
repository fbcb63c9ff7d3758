"""A file that HDF5 writes by; on a full disk HDF5 itself would crash the process."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


class SurvivingFile(io.FileIO):
    """A new file for h5py, for which a write that failed did not.

    Where HDF5 cannot write its last bytes it cannot close the file, and ends the process when that
    ends. So nothing is written any more after the first error; `check` raises it.

    Parameters
    ----------
    path : Path
        Must not exist.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error of the first write that failed."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all, or nothing more from the first error on."""
        rest = memoryview(data).cast("B")
        try:
            while rest and self._error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        return len(data)

    def readinto(self, into: Any) -> int:
        """Fill a buffer, with zeros where nothing was written."""
        rest = memoryview(into).cast("B")
        while rest and (count := super().readinto(rest)):
            rest = rest[count:]
        rest[:] = bytes(len(rest))
        return len(into)

    def truncate(self, size: int | None = None) -> int:
        """Give the file a length."""
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0
