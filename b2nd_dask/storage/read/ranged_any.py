"""Byte ranges from any fsspec file system, and from the copies of simplecache."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.ranged import (
    RangeRequest,
    RangeSource,
    called_alone,
    changed,
    require_known,
    require_short,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.spans import Span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

_copied: dict[str, Identity] = {}
"""By the path of each copy: the state of the copied object."""


class AnyRanges(RangeSource):
    """Request byte ranges from any file system.

    Bytes come without the state of the object, so `info` is requested after them, and also before
    them if no state is known. If the file system reports no version, digest or time, only a change
    of the size is detected.
    """

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._looks: WeakValueDictionary[str, _Look] = WeakValueDictionary()

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RangeSource.fetch`."""
        path = request.path
        identity = request.known or await self._identity(path)
        start, stop = request.bytes_of(identity.size)
        data = b""
        if start < stop:
            data = await self._ask("cat_file", path, start=start, end=stop)
        look = self._looks.setdefault(path, _Look())
        found = await look.after_now(partial(self._identity, path))
        require_known(request._replace(known=identity), found)
        return _response(data, Span(start, stop), identity, request)

    async def _identity(self, path: str) -> Identity:
        """Request the current state of an object, not the state in the file system's cache."""
        if self.fs.cachable:
            # all of the cache: some file systems keep details of a file in the listing of its
            # parent, which invalidate_cache(path) does not drop
            self.fs.invalidate_cache()
        return identity_in(await self._ask("info", path))

    async def _ask(self, method: str, *args: Any, **keywords: Any) -> Any:
        """Call the file system, in a thread if it has no event loop."""
        if isinstance(self.fs, AsyncFileSystem):
            return await getattr(self.fs, f"_{method}")(*args, **keywords)
        return await called_alone(getattr(self.fs, method), *args, **keywords)


class _Look:
    """Lookups of an object's state; each serves all callers that waited for its start."""

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self._lock = asyncio.Lock()
        self._begun = 0

    async def after_now(self, look: Callable[[], Awaitable[Identity]]) -> Identity:
        """Return the state of the object at a moment after this call."""
        now = next(self._clock)
        async with self._lock:
            if self._begun < now:
                begun = next(self._clock)
                self._found = await look()
                self._begun = begun
            return self._found


class CopyRanges(AnyRanges):
    """Request byte ranges from simplecache: from copies of the known state of each object.

    If another process made a copy (in an existing ``cache_storage``), only its size is compared.
    """

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; copies do not change, so there is no second lookup of `info`."""
        identity = request.known or await self._identity(request.path)
        response: Response = await called_alone(self._read_copy, request, identity)
        return response

    def _read_copy(self, request: RangeRequest, identity: Identity) -> Response:
        self._prepare(request, identity)
        start, stop = request.bytes_of(identity.size)
        data = b""
        if start < stop:
            # not cat_file, which first checks that the object exists
            (data,) = self.fs.cat_ranges([request.path], [start], [stop], on_error="raise")
        return _response(data, Span(start, stop), identity, request)

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        copy: str | None = self.fs._check_file(request.path)
        if copy is not None:
            if copy not in _copied and Path(copy).stat().st_size == identity.size:
                _copied[copy] = identity
            if _copied.get(copy) == identity:
                return
            if request.known is not None and copy in _copied:
                raise changed(request)
            self._drop(copy)
        self.fs.cat_ranges([request.path], [0], [0], on_error="raise")
        copy = str(self.fs._check_file(request.path))
        if identity_in(self.fs.info(request.path)) != identity:
            self._drop(copy)
            raise changed(request)
        _copied[copy] = identity

    def _drop(self, copy: str) -> None:
        _copied.pop(copy, None)
        Path(copy).unlink(missing_ok=True)


def identity_in(info: Mapping[str, Any]) -> Identity:
    """State of an object, from its `info`.

    Raises
    ------
    IsADirectoryError
    OSError
        The file system does not report the size.
    """
    if info.get("type") == "directory":
        raise IsADirectoryError(info.get("name"))
    size = info.get("size")
    if not isinstance(size, int):
        raise unknown_size()
    return Identity(size, token_of(info))


def _response(data: bytes, span: Span, identity: Identity, request: RangeRequest) -> Response:
    if len(data) == span.stop - span.start:
        return Response(span.start, data, identity)
    if len(data) == identity.size:
        require_short(identity.size, identity.size, request.label)
        return Response(0, data, identity, ranges_ignored=True)
    raise changed(request)
