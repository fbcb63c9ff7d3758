"""Whether an opened frame may be read: its checksums, and whether it is still what is there."""

from __future__ import annotations

import warnings

from b2nd_dask.errors import ChecksumError, StaleFrameError, level_of_caller
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.open.opening import NOT_SHARED, OUTDATED, OpenedFrame
from b2nd_dask.processes import unseen


def require_checksums(opened: OpenedFrame) -> None:
    """Check that a frame's checksums are in a state that the user's `verify` accepts.

    Raises
    ------
    ChecksumError
        The frame's metadata are damaged, or it has no checksums where they are required.
    """
    integrity = opened.parsed.integrity
    if integrity.checksum_state is ChecksumState.DAMAGED and opened.verify:
        raise ChecksumError(
            f"the frame is damaged: {integrity.reason}; verify=False reads it nevertheless",
            path=opened.reader.label,
        )
    if integrity.checksum_state is ChecksumState.ABSENT and opened.verify is True:
        raise ChecksumError(
            f"the frame has no valid checksums: {integrity.reason}; b2nd_dask.seal adds them, "
            'verify="auto" reads without',
            path=opened.reader.label,
        )


def warn_of_remedy(opened: OpenedFrame) -> None:
    """Warn where a change by other software and damage look the same, unless `verify` is False."""
    integrity = opened.parsed.integrity
    if not integrity.remedy or not opened.verify:
        return
    warnings.warn(
        f"{opened.reader.label}: {integrity.reason}. {integrity.remedy}; verify=True refuses "
        "such a frame, verify=False reads it without this warning",
        UserWarning,
        stacklevel=level_of_caller(),
    )


def is_current(opened: OpenedFrame) -> bool:
    """Whether an opened frame is still what its location holds.

    Raises
    ------
    FileNotFoundError, PermissionError
        The path of a local frame is not there, in this process.
    """
    try:
        return opened.is_current()
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if not opened.reader.identity_is_cheap:
            raise
        raise unseen(error, opened.reader.label, NOT_SHARED) from None


def require_current(opened: OpenedFrame) -> None:
    """Check that an opened frame is still what its location holds.

    Raises
    ------
    StaleFrameError
        It is not.
    FileNotFoundError, PermissionError
        As for `is_current`.
    """
    if not is_current(opened):
        raise StaleFrameError(OUTDATED, path=opened.reader.label)
