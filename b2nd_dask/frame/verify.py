"""Check all checksums of a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.integrity import ChecksumState, require_digest
from b2nd_dask.frame.access import UrlPath, locate
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.validity import require_current
from b2nd_dask.frame.read.scan import scan_chunks
from b2nd_dask.lazy import lazy


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    path: str
    """Path or URL of the frame."""
    checksum_state: ChecksumState
    """Whether the frame's checksums are valid, absent or damaged, whatever its chunks are."""
    reason: str
    """Why they are absent, or what is damaged; empty where they are valid."""
    nchunks: int
    """Chunks that were read and checked. Constant chunks have no data: the index says all."""
    bad: tuple[B2ndError, ...]
    """One error for each chunk that is not what was written, in the order of the chunks; see
    `B2ndError.chunk`."""
    bad_statistics: str = ""
    """What is damaged of the statistics of the chunks, which are not used then; mostly nothing."""

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "verification_html")

    @property
    def ok(self) -> bool:
        """Whether there are valid checksums, and chunks and statistics match their own."""
        intact = not self.bad and not self.bad_statistics
        return self.checksum_state is ChecksumState.VALID and intact

    def __str__(self) -> str:
        if self.checksum_state is ChecksumState.ABSENT and not self.bad:
            return f"{self.path}: no valid checksums: {self.reason}"
        if self.checksum_state is ChecksumState.DAMAGED:
            return f"{self.path}: damaged: {self.reason}"
        if self.bad:
            return f"{self.path}: damaged: {len(self.bad)} of {self.nchunks} stored chunks"
        if self.bad_statistics:
            return (
                f"{self.path}: all {self.nchunks} stored chunks are as they were written, but the "
                f"statistics are damaged: {self.bad_statistics}; add_stats writes them anew"
            )
        return f"{self.path}: verified: all {self.nchunks} stored chunks are as they were written"


def verify(
    urlpath: UrlPath | Any,
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Check a whole frame against its checksums.

    Every stored chunk is read once, none is decoded.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        As for `open_b2nd`.
    threads : int, optional
        One for each processor by default.
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
        Not a frame, or so damaged that its chunks cannot be found.
    StaleFrameError
        The frame was changed meanwhile.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=250)
    >>> result = verify(path)
    >>> result.ok, result.nchunks
    (True, 4)
    """
    return verify_noting(
        urlpath, lambda *_: None, threads=threads, storage_options=storage_options, offset=offset
    )


def verify_noting(
    urlpath: UrlPath | Any,
    note: Callable[[int, int], None],
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Verify, and call a function after each chunk with how many are done, and of how many."""
    opened = process_cache().open(locate(urlpath, offset, storage_options))
    columns = opened.parsed.columns
    digests, statistics = columns.digests, columns.statistics_verdict
    bad: dict[int, B2ndError] = {}
    nchunks = 0
    if digests is not None:
        for chunk, result in scan_chunks(opened, partial(_check, digests), threads):
            nchunks += 1
            note(nchunks, opened.parsed.index.nstored)
            if isinstance(result, B2ndError):
                bad[chunk] = result
    # what another program changed meanwhile is no damage
    require_current(opened)
    return Verification(
        path=opened.reader.label,
        checksum_state=columns.checksums.state,
        reason=columns.checksums.reason,
        nchunks=nchunks,
        bad=tuple(bad[chunk] for chunk in sorted(bad)),
        bad_statistics=statistics.reason,
    )


def _check(digests: NDArray[np.uint64], chunk: int, data: memoryview) -> int:
    expected = int(digests[chunk])
    require_digest(data, expected)
    return expected
