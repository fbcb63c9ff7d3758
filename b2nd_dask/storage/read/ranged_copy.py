"""Byte ranges of the whole local copies that simplecache makes and never refreshes."""

from __future__ import annotations

from pathlib import Path

from b2nd_dask.storage.byte_reader import Identity
from b2nd_dask.storage.read.ranged import RangeRequest, changed
from b2nd_dask.storage.read.ranged_any import AnyRanges, identity_in

_copied: dict[str, Identity] = {}
"""By the path of each copy: the state of the object that this process made it of."""


class CopyRanges(AnyRanges):
    """Ask simplecache for byte ranges, of copies that are of the state that is asked for.

    Of a copy that this process did not make (in a ``cache_storage`` that was there before) only
    the size can be compared.

    Parameters
    ----------
    fs : fsspec.implementations.cached.SimpleCacheFileSystem
    """

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        copy: str | None = self._fs._check_file(request.path)
        if copy is not None:
            if copy not in _copied and Path(copy).stat().st_size == identity.size:
                _copied[copy] = identity
            if _copied.get(copy) == identity:
                return
            if request.known is not None and copy in _copied:
                raise changed(request)
            self._drop(copy)
        self._fs.cat_ranges([request.path], [0], [0], on_error="raise")
        copy = str(self._fs._check_file(request.path))
        if identity_in(self._fs.info(request.path)) != identity:
            self._drop(copy)
            raise changed(request)
        _copied[copy] = identity

    def _drop(self, copy: str) -> None:
        _copied.pop(copy, None)
        Path(copy).unlink(missing_ok=True)
