"""The error tree: what is wrong, in which frame, at which byte or chunk.

Every class also derives from the builtin that callers of array libraries already catch. The format
layer sees bytes, not paths: callers add missing fields with `B2ndError.located`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

#: How to read one array of a store of python-blosc2 (``.b2z``, ``.b2d``, ``.b2e``).
OPEN_STORE = "component=KEY reads an array of it, and `b2nd-dask info PATH` lists the keys"


class B2ndError(Exception):
    """Root of all errors of this package.

    Parameters
    ----------
    problem : str
        One sentence: what is wrong and, if there is a remedy, what to do.
    path : str, optional
        Path or URL of the frame.
    offset : int, optional
        Byte offset of the fault from the start of the frame, or of the chunk file if it is sparse.
    chunk : int, optional
        Number of the chunk, in C order over the chunk grid.

    Examples
    --------
    >>> str(FrameFormatError("the magic is missing", path="a.b2nd", offset=2))
    'a.b2nd: at byte 2: the magic is missing'
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.offset = offset
        self.chunk = chunk

    def __str__(self) -> str:
        where = [
            self.path,
            None if self.chunk is None else f"chunk {self.chunk}",
            None if self.offset is None else f"at byte {self.offset}",
        ]
        return ": ".join([*(part for part in where if part is not None), self.problem])

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), path=self.path, offset=self.offset, chunk=self.chunk)
        return make, (self.problem,)

    def located(
        self, *, path: str | None = None, chunk: int | None = None, shift: int = 0, part: str = ""
    ) -> Self:
        """Add path and chunk if missing, and `shift` bytes to the offset; return the same error.

        `part` names the part of the frame with the fault.
        """
        self.problem = f"in {part}: {self.problem}" if part else self.problem
        self.path = self.path if self.path is not None else path
        self.chunk = self.chunk if self.chunk is not None else chunk
        if self.offset is not None:
            self.offset += shift
        return self


@contextmanager
def locating(
    *, path: str | None = None, chunk: int | None = None, shift: int = 0, part: str = ""
) -> Iterator[None]:
    """Add locations to the errors of a `with` block; arguments as for `B2ndError.located`."""
    try:
        yield
    except B2ndError as error:
        error.located(path=path, chunk=chunk, shift=shift, part=part)
        raise


def level_of_caller() -> int:
    """Compute the `stacklevel` of a warning: that of the first caller outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("b2nd_dask."):
        level, frame = level + 1, frame.f_back
    return level


class FrameFormatError(B2ndError, ValueError):
    """Bytes that break the frame format: truncated, damaged, or not a frame at all."""


class UnsupportedFrameError(B2ndError, ValueError):
    """A valid frame that is no array, or needs an unavailable codec, filter or version."""


class CorruptChunkError(B2ndError, ValueError):
    """A chunk with damaged bytes."""


class ChecksumError(CorruptChunkError):
    """Bytes that do not match their checksum, or checksums that are required and missing."""


class UninitializedChunkError(B2ndError, ValueError):
    """A chunk that was never written was read with ``uninit="raise"``."""


class StaleFrameError(B2ndError, OSError):
    """The frame changed after it was opened, or after the graph was built."""


class VersionMismatchError(B2ndError, RuntimeError):
    """Processes of a cluster have different versions of this package."""
