"""What the chunks without data read as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UninitializedChunkError
from b2nd_dask.format.chunk.constant import nan_element, read_only
from b2nd_dask.format.index import ChunkKind


@dataclass(frozen=True, eq=False, slots=True)
class Fill:
    """Elements of special chunks, for one dtype and one choice of `uninit`."""

    dtype: np.dtype[Any]
    uninit: NDArray[Any] | None
    """0-d element of chunks that were never written, read-only; None if reading them raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # NumPy's pickles below protocol 5 make arrays of the other byte order native
        uninit = None if self.uninit is None else self.uninit.tobytes()
        return _unpickled, (self.dtype, uninit)

    @classmethod
    def of(cls, dtype: np.dtype[Any], uninit: object) -> Fill:
        """Check the user's choice.

        Parameters
        ----------
        dtype : numpy.dtype
            Of the array.
        uninit : object
            None for zeros, ``"raise"``, or a value that the dtype can hold.

        Raises
        ------
        ValueError
            A value that the dtype cannot hold.
        """
        if uninit is None:
            return cls(dtype, read_only(np.zeros((), dtype)))
        if isinstance(uninit, str) and uninit == "raise":
            return cls(dtype, None)
        try:
            return cls(dtype, read_only(np.array(uninit, dtype).reshape(())))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"uninit={uninit!r} is no value of dtype {dtype}") from error

    def element(self, kind: int) -> NDArray[Any]:
        """Element of a special chunk.

        Parameters
        ----------
        kind : int
            A `ChunkKind` other than STORED.

        Returns
        -------
        ndarray
            0-d, read-only.

        Raises
        ------
        UninitializedChunkError
            The chunk was never written, and `uninit` is "raise".
        CorruptChunkError
            A NaN chunk in an array whose dtype has no NaN.
        """
        if kind == ChunkKind.ZEROS:
            return read_only(np.zeros((), self.dtype))
        if kind == ChunkKind.NAN:
            return nan_element(self.dtype)
        if self.uninit is None:
            raise UninitializedChunkError(
                'it was never written, and uninit="raise" asks for this error'
            )
        return self.uninit


def _unpickled(dtype: np.dtype[Any], uninit: bytes | None) -> Fill:
    return Fill(dtype, None if uninit is None else np.frombuffer(uninit, dtype).reshape(()))
