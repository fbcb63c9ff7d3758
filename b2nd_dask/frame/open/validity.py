"""Whether an opened frame may be read: its checksums, and whether it is still what is there."""

from __future__ import annotations

import hashlib
import warnings

from b2nd_dask.errors import ChecksumError, StaleFrameError, level_of_caller
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.trailer import TOKEN_NBYTES, PastUpdate
from b2nd_dask.frame.open.opening import OUTDATED, OpenedFrame, ParsedFrame


def state_token(parsed: ParsedFrame) -> bytes:
    """Name a state of a frame, by what any change of it by anybody changes.

    Neither the file's time nor its size are in it where something better is: a writer that is
    killed behind the frame's end changes both.
    """
    if parsed.history.updates:
        return bytes.fromhex(parsed.history.updates[-1].key)
    if parsed.columns.checksums.is_valid and len(parsed.index):
        # of metadata with the checksums of all chunks, whose stamp other software wipes
        return bytes.fromhex(parsed.digest)
    return hashlib.blake2b(parsed.version.encode(), digest_size=TOKEN_NBYTES).digest()


def updates_since(parsed: ParsedFrame, token: bytes) -> tuple[PastUpdate, ...] | None:
    """Find the updates that led from a state of a frame to this one; None where that is unknown."""
    if token == state_token(parsed):
        return ()
    base, updates = parsed.history
    states = [base, *(bytes.fromhex(update.key) for update in updates)]
    return updates[states.index(token) :] if updates and token in states else None


def require_descendant(opened: OpenedFrame, token: bytes) -> None:
    """Check that only updates of this package lie between a state of a frame and another.

    Raises
    ------
    StaleFrameError
        It was replaced, other software changed it, or there were too many updates to know.
    """
    if updates_since(opened.parsed, token) is None:
        raise StaleFrameError(OUTDATED, path=opened.reader.label)


def require_checksums(opened: OpenedFrame) -> None:
    """Check that a frame's checksums are in a state that the user's `verify` accepts.

    Raises
    ------
    ChecksumError
        The frame's metadata are damaged, or it has no checksums where they are required.
    """
    checksums = opened.parsed.columns.checksums
    if checksums.is_damaged and opened.verify:
        raise ChecksumError(
            f"the frame is damaged: {checksums.reason}; verify=False reads it nevertheless",
            path=opened.reader.label,
        )
    if checksums.state is ChecksumState.ABSENT and opened.verify is True:
        raise ChecksumError(
            f"the frame has no valid checksums: {checksums.reason}; b2nd_dask.seal adds them, "
            'verify="auto" reads without',
            path=opened.reader.label,
        )


def warn_of_remedy(opened: OpenedFrame) -> None:
    """Warn where a change by other software and damage look the same, unless `verify` is False."""
    checksums = opened.parsed.columns.checksums
    if not checksums.remedy or not opened.verify:
        return
    warnings.warn(
        f"{opened.reader.label}: {checksums.reason}. {checksums.remedy}; verify=True refuses "
        "such a frame, verify=False reads it without this warning",
        UserWarning,
        stacklevel=level_of_caller(),
    )


def require_current(opened: OpenedFrame) -> None:
    """Check that an opened frame is still what its location holds.

    Raises
    ------
    StaleFrameError
        It is not.
    FileNotFoundError, PermissionError
        As for `OpenedFrame.is_current`.
    """
    if not opened.is_current():
        raise StaleFrameError(OUTDATED, path=opened.reader.label)
