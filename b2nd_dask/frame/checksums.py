"""`verify`: compare a whole frame with its checksums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import UrlPath, locate
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.read.scan import scan_digests
from b2nd_dask.lazy import lazy
from b2nd_dask.storage import Location


@dataclass(frozen=True)
class Verification:
    """The result of `verify`."""

    path: str
    """Path or URL of the frame."""
    checksum_state: ChecksumState
    """Whether the frame's checksums are valid, absent, stale or damaged, independent of its
    chunks."""
    reason: str
    """Why they are absent or stale, or what is damaged; empty if they are valid."""
    nchunks: int
    """Number of verified chunks. Constant chunks have no data, so the index suffices."""
    bad: tuple[B2ndError, ...]
    """One error per damaged chunk, in the order of the chunks; `B2ndError.chunk` is its
    number."""
    bad_statistics: str = ""
    """Damage in the statistics of the chunks, which are then ignored; usually empty."""

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "verification_html")

    @property
    def ok(self) -> bool:
        """Whether valid checksums match all chunks, and the statistics are undamaged."""
        intact = not self.bad and not self.bad_statistics
        return self.checksum_state is ChecksumState.VALID and intact

    def __str__(self) -> str:
        if lacks_checksums(self):
            return f"{self.path}: no valid checksums: {self.reason}"
        if self.checksum_state is ChecksumState.DAMAGED:
            return f"{self.path}: damaged: {self.reason}"
        if self.bad:
            return f"{self.path}: damaged: {len(self.bad)} of {self.nchunks} stored chunks"
        if self.bad_statistics:
            return (
                f"{self.path}: all {self.nchunks} stored chunks are as they were written, but the "
                f"statistics are damaged: {self.bad_statistics}; add_stats writes them again"
            )
        return f"{self.path}: verified: all {self.nchunks} stored chunks are as they were written"


def lacks_checksums(found: Verification) -> bool:
    """Whether no damage was found, for lack of valid checksums."""
    return found.checksum_state in (ChecksumState.ABSENT, ChecksumState.STALE) and not found.bad


def verify(
    urlpath: UrlPath | Any,
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Check a whole frame against its checksums.

    Reads every stored chunk once and decodes none.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        As for `open_b2nd`.
    threads : int, optional
        One per processor by default.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    offset : int, optional
        Bytes before the frame inside its file.

    Returns
    -------
    Verification

    Raises
    ------
    FileNotFoundError
        No such file.
    FrameFormatError
        The path is not a frame, or damage prevents locating its chunks.
    StaleFrameError
        The frame was changed during the call.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=250)
    >>> result = verify(path)
    >>> result.ok, result.nchunks
    (True, 4)
    """
    return verify_noting(locate(urlpath, offset, storage_options), lambda *_: None, threads)


def verify_noting(
    location: Location, note: Callable[[int, int], None], threads: int | None = None
) -> Verification:
    """Verify, and call `note` after each chunk with the number of finished and of all chunks."""
    opened = process_cache.open(location)
    columns = opened.parsed.columns
    bad: dict[int, B2ndError] = {}
    nchunks = 0
    if columns.digests is not None:
        for chunk, result in scan_digests(opened, threads=threads):
            nchunks += 1
            note(nchunks, opened.parsed.index.nstored)
            if isinstance(result, B2ndError):
                bad[chunk] = result
    # a change by another program during the reads is not damage
    opened.require_current()
    return Verification(
        path=opened.reader.label,
        checksum_state=columns.checksums.state,
        reason=columns.checksums.reason,
        nchunks=nchunks,
        bad=tuple(bad[chunk] for chunk in sorted(bad)),
        bad_statistics=columns.bad_statistics,
    )
