"""What responses of stores say: the identity of the object, the bytes of a range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.ranged import (
    PassingError,
    RangeRequest,
    SlowServerError,
    changed,
    in_time,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WHOLE = 16 * 1024 * 1024
"""Most bytes to fetch for a range from a server that ignores ranges."""

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19})")
#: Headers of the whole object, in HTTP and in the client of S3. Digests of a part are of its bytes.
_OF_OBJECT = ("ETag", "Last-Modified", "LastModified")
_TOKENS = (
    ("etag", "e_tag"),
    ("versionid", "generation", "version_id", "version"),
    ("content_md5", "content-md5", "md5hash", "digest", "checksum", "crc", "sha"),
    ("last-modified", "last_modified", "lastmodified", "mtime", "modified", "modify", "created"),
)


def described(
    request: RangeRequest, headers: Mapping[str, Any], content_range: str | None, length: int | None
) -> tuple[Response, int]:
    """Describe a response by its headers; also return the number of bytes to read from its body.

    `content_range` is None if the server ignores ranges; `length` is that of the body. Raises
    OSError if the response does not say the size or has another range, or the server ignores ranges
    and the object is large; `StaleFrameError` if the object has changed since its known state.
    """
    if content_range is None and (length is None or request.from_end):
        raise unknown_size()
    size = length or 0 if content_range is None else size_in(content_range, request)
    token = token_of({name: headers[name] for name in _OF_OBJECT if name in headers})
    identity = Identity(size, token)
    require_known(request, identity)
    if content_range is not None:
        start, stop = request.bytes_of(size)
        return Response(start, b"", identity), stop - start
    require_short(size, request.span.stop, request.label)
    return Response(0, b"", identity, ranges_ignored=True), min(request.span.stop, size)


async def read_body(body: Any, nbytes: int) -> bytes:
    """Read `nbytes` bytes of a body and no more, whatever the server sends.

    Raises `PassingError` if fewer bytes arrive, `SlowServerError` if they take too long.
    """
    parts, left = [], nbytes
    try:
        async with in_time(nbytes):
            while left and (part := await body.read(left)):
                parts.append(part)
                left -= len(part)
    except SlowServerError:
        raise
    except Exception as error:  # noqa: BLE001 - several libraries have their own error trees
        problem = f"{type(error).__name__}: {error}"
    else:
        if not left:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        problem = f"{nbytes - left} of {nbytes} bytes arrived"
    raise PassingError(f"the response broke off: {problem}")


def identity_in(info: Mapping[str, Any]) -> Identity:
    """State of an object, from its `info`.

    Raises IsADirectoryError for a directory, OSError if the file system does not report the size.
    """
    if info.get("type") == "directory":
        raise IsADirectoryError(info.get("name"))
    size = info.get("size")
    if not isinstance(size, int):
        raise unknown_size()
    return Identity(size, token_of(info))


def token_of(details: Mapping[str, Any]) -> str:
    """Choose the strongest detail that changes with an object; empty if there is none.

    `details` are the `info` of fsspec, or headers of a response.
    """
    by_name = {key.lower(): value for key, value in details.items()}
    for keys in _TOKENS:
        found = [str(by_name[key]) for key in keys if by_name.get(key)]
        if found:
            return "-".join(found)
    return ""


def size_in(content_range: str, request: RangeRequest) -> int:
    """Size of an object, from a header such as ``bytes 0-99/1234``, or ``bytes */1234`` for none.

    Raises OSError if the response does not say the size, or its range is not the requested one.
    """
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise unknown_size()
    first, last, size = found.groups()
    start, stop = request.bytes_of(int(size))
    if (start < stop) if first is None else (int(first), int(last) + 1) != (start, stop):
        raise OSError(
            f"the server sent the range {content_range!r} for a request of {request.header()}"
        )
    return int(size)


def unknown_size() -> OSError:
    """Error for a server that does not report sizes."""
    return OSError(
        "the server does not report the size of the object; "
        "copy it to a local file, or open it through simplecache::"
    )


def require_known(request: RangeRequest, identity: Identity) -> None:
    """Raise StaleFrameError unless a response comes from the known state of the object."""
    if request.known not in (None, identity):
        raise changed(request)


def require_short(size: int, stop: int, label: str) -> None:
    """Check that `size` bytes can be fetched up to `stop`, if the server ignores ranges."""
    if min(size, stop) > MAX_WHOLE:
        raise OSError(
            f"{label}: the server ignores byte ranges, so that each read transfers up to {size} "
            "bytes; copy the object to a local file, or open it through simplecache::"
        )
