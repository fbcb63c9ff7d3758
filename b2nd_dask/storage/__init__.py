"""Byte ranges of local files, fsspec objects, bytes in memory, and frames inside containers."""

from b2nd_dask.storage.base import ByteReader, Identity, Span
from b2nd_dask.storage.location import Location

__all__ = ["ByteReader", "Identity", "Location", "Span"]
