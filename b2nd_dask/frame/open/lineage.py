"""Whether a frame is what updates of this package alone have made of an earlier state of it."""

from __future__ import annotations

import hashlib

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.format.history import TOKEN_NBYTES, UNKNOWN, History, PastUpdate
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.open.opening import OUTDATED, OpenedFrame, ParsedFrame


def state_token(parsed: ParsedFrame) -> bytes:
    """Name a state of a frame, by what any change of it by anybody changes.

    Neither the file's time nor its size are in it where something better is: a writer that is
    killed behind the frame's end changes both.
    """
    if parsed.history.updates:
        return bytes.fromhex(parsed.history.updates[-1].key)
    if parsed.integrity.checksum_state is ChecksumState.VALID and len(parsed.index):
        # of metadata with the checksums of all chunks, whose stamp other software wipes
        return bytes.fromhex(parsed.digest)
    return hashlib.blake2b(parsed.version.encode(), digest_size=TOKEN_NBYTES).digest()


def updates_since(history: History, token: bytes) -> tuple[PastUpdate, ...] | None:
    """Find the updates that followed a state; None where the history does not have that state."""
    if history.updates and token == history.base:
        return history.updates
    states = [bytes.fromhex(update.key) for update in history.updates]
    if token not in states:
        return None
    return history.updates[states.index(token) + 1 :]


def has_lost_updates(history: History) -> bool:
    """Whether a history does not reach back to its begin."""
    return bool(history.updates) and history.base == UNKNOWN


def require_descendant(opened: OpenedFrame, token: bytes) -> None:
    """Check that only updates of this package lie between a state of a frame and another.

    Raises
    ------
    StaleFrameError
        It was replaced, other software changed it, or there were too many updates to know.
    """
    parsed = opened.parsed
    if token != state_token(parsed) and updates_since(parsed.history, token) is None:
        raise StaleFrameError(OUTDATED, path=opened.reader.label)
