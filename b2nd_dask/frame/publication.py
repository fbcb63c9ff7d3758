"""Whether a write has published its frame already: dask runs tasks again when a worker is lost."""

from __future__ import annotations

import logging
from typing import Any

from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.header import header_len_of, parse_header
from b2nd_dask.format.trailer import Trailer, build_trailer, trailer_len_of
from b2nd_dask.format.write_mark import MARK_NBYTES, parse_mark
from b2nd_dask.frame.records import ChunkRecords
from b2nd_dask.frame.writer import FramePlan, write_block
from b2nd_dask.storage import HEAD_NBYTES, ByteReader, Span, Staging

logger = logging.getLogger("b2nd_dask")

#: What a write meets that runs again after it published: its parts are gone, its target is there,
#: the frame that it changes is another one, records are missing. A failing disk is none of these.
SEEN_AGAIN = (FileNotFoundError, FileExistsError, B2ndError)


def open_staging(plan: FramePlan, staging: Staging) -> Staging:
    """Make the staging area of a write, when its graph is computed.

    Parameters
    ----------
    plan : FramePlan
    staging : Staging

    Returns
    -------
    Staging
        The same.

    Raises
    ------
    FileExistsError
        The target is there, and was not made by this write.
    OSError
        Nothing can be written there.
    """
    try:
        staging.prepare()
    except FileExistsError:
        if not is_published(plan, staging):
            raise
        # its tasks run again and need a place; the last one will find the frame and leave it
        staging.make_area()
    return staging


def write_block_once(
    items: NDArray[Any], origin: tuple[int, ...], plan: FramePlan, staging: Staging
) -> ChunkRecords:
    """As `write_block`; nothing where the frame was published while the block was computed again.

    Parameters
    ----------
    items, origin, plan, staging
        Of `write_block`.

    Returns
    -------
    ChunkRecords
    """
    try:
        return write_block(items, origin, plan, staging)
    except FileNotFoundError:
        if not is_published(plan, staging):
            raise
        return ChunkRecords.of({}, {}, {})


def is_published(plan: FramePlan, staging: Staging) -> bool:
    """Whether the frame that is there was made by this very write.

    Parameters
    ----------
    plan : FramePlan
    staging : Staging

    Returns
    -------
    bool
        False too where no frame is there.
    """
    try:
        reader = staging.reader()
        try:
            if plan.grid.nchunks == 0:
                return _is_empty_frame(reader, plan)
            return write_key_of(reader) == staging.key
        finally:
            reader.close()
    except (OSError, B2ndError):
        return False


def clean_up(staging: Staging) -> None:
    """Remove what was staged; where that fails, say so and go on: the target is what it is.

    Parameters
    ----------
    staging : Staging
    """
    try:
        staging.discard()
    except Exception as error:  # noqa: BLE001 - every store has a tree of errors of its own
        logger.warning(
            "%s: what was staged under the key %s could not be removed (%s); "
            "`remove_staging` removes it",
            staging.label,
            staging.key,
            error,
        )


def write_key_of(reader: ByteReader) -> str | None:
    """The key of the write that made a frame.

    Parameters
    ----------
    reader : ByteReader

    Returns
    -------
    str or None
        None where other software made it, or changed it since.

    Raises
    ------
    OSError
        It cannot be read.
    FrameFormatError
        It is no frame.
    """
    size = reader.identity().size
    (head,) = reader.read([Span(0, HEAD_NBYTES)])
    header_len = header_len_of(head)
    if header_len > len(head):
        (head,) = reader.read([Span(0, header_len)])
    header = parse_header(head, size)
    end = header.frame_len
    # 23 bytes are what `trailer_len_of` looks at
    (tail,) = reader.read([Span(end - 23, end)])
    start = end - trailer_len_of(tail, end - header_len)
    if start - MARK_NBYTES < header.index_start:
        return None
    (mark,) = reader.read([Span(start - MARK_NBYTES, start)])
    return parse_mark(mark)


def _is_empty_frame(reader: ByteReader, plan: FramePlan) -> bool:
    """Without chunks there is no mark; all that such a frame holds is its metadata."""
    trailer = build_trailer(Trailer(plan.vlmeta, b""))
    frame_len = len(plan.header()) + len(trailer)
    whole = plan.header(frame_len=frame_len, has_vlmeta=bool(plan.vlmeta)) + trailer
    return reader.read([Span(0, len(whole) + 1)]) == [whole]
