"""The file system of a URL in this process, and how ranges are requested from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from b2nd_dask.storage.failures import public_error
from b2nd_dask.storage.read.connection import Connection, connect
from b2nd_dask.storage.read.ranged import RangeRequest, RangeSource, get_all
from b2nd_dask.storage.read.ranged_any import AnyRanges, CopyRanges
from b2nd_dask.storage.read.ranged_stores import HttpRanges, S3Ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from b2nd_dask.storage.byte_reader import Response
    from b2nd_dask.storage.read.location import Location


class RemoteStore(NamedTuple):
    """What one process needs to read from the store of a URL."""

    connection: Connection
    source: RangeSource

    @classmethod
    def of(cls, location: Location) -> RemoteStore:
        """Connect to the store of a URL."""
        connection = connect(location)
        return cls(connection, _source(connection))

    def get(self, requests: Sequence[RangeRequest]) -> list[Response]:
        """Request ranges, with errors that name the object and hold no secrets."""
        responses: list[Response] = []
        try:
            responses.extend(get_all(self.source, requests))
        except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
            request = requests[len(responses)]
            failure = public_error(error, request.label, self.connection.secrets)
        else:
            return responses
        # Outside of the except clause, after which nothing here refers to the original.
        raise failure


def _source(connection: Connection) -> RangeSource:
    if connection.has_protocol("https") and hasattr(connection.fs, "set_session"):
        return HttpRanges(connection.fs)
    if connection.has_protocol("s3") and hasattr(connection.fs, "call_s3"):
        return S3Ranges(connection.fs)
    if connection.has_protocol("simplecache"):
        return CopyRanges(connection.fs)
    return AnyRanges(connection.fs)
